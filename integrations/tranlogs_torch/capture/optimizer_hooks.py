"""One optimizer of a run: hooks on the inner optimizer capture what each step consumes.

Pre-hook last, post-hook first, on the inner optimizer: whoever steps it (the wrapper, the user, a GradScaler), the step
is seen once; what other hooks do to gradients is captured, what they do to weights afterwards is a write like any other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from operator import is_
from typing import Any, Literal

import torch

from tranlogs.base.errors import LogUnavailable
from tranlogs.base.types import AnyArray
from tranlogs.records import NO_TENSORS, Layout, Payload, Tensor, tree
from tranlogs.training import StepRecorder

from ..ddp.gradient_ranges import Portion
from ..sharding import fsdp_wrapper
from ..sharding.shards import array_of, is_elementwise, is_part, placed, settled, spec_of
from ..sharding.zero_optimizer import forget_places, own_of
from ..state.extra_state import is_torchs
from ..state.fingerprint import StateWatch, version_of, versions
from ..state.group_values import GroupValues
from ..state.pending_gradients import mark_used
from ..tensors.arrays import adapt, to_array
from ..tensors.placement import KNOWN, local
from .grad_scaler import ScalerWatch
from .gradient_plan import GradientPlans
from .logged_run import LoggedRun
from .replay_check import StepRehearsal
from .single_step import can_nest, is_nested

_log = logging.getLogger("tranlogs")

LogKind = Literal["gradients", "weights"]


class OptimizerHooks:
    """See the module.

    Attributes:
        name: of the optimizer in the run.
        inner: the optimizer that takes the steps of this process.
        outer: the one around it, which has all parameters; itself if there is none.
        log: "gradients" or "weights"; what cannot be redone from gradients logs weights once that is found out.
    """

    def __init__(self, run: LoggedRun, name: str, outer: torch.optim.Optimizer, log: LogKind, *, optimizer_state: bool) -> None:
        self.run, self.name, self.outer, self.log = run, name, outer, log
        self.inner = inner = own_of(outer)
        self._values = GroupValues(outer)
        tree.encode(self._values.now(), path=f"optimizer {name!r}.param_groups", adapt=adapt)
        if log == "gradients" and isinstance(inner, torch.optim.LBFGS):
            self.log = "weights"
            _log.warning(
                "LBFGS evaluates its closure many times a step and cannot be redone from gradients: its weights and "
                "state are logged instead"
            )
        if self.log == "gradients" and not is_elementwise(inner) and any(map(is_part, self.parameters())):
            self.log = "weights"
            _log.warning(
                "%s: its parameters are sharded, and that its update goes element by element is not known: weights "
                "and state are logged, not gradients",
                type(inner).__name__,
            )
        self.shell: Any = self.inner  # the wrapper around it, as soon as there is one
        self.with_state = optimizer_state or self.log == "gradients"
        self.watch = StateWatch(inner)
        self.recorder = StepRecorder(run.journal)
        self._plans = GradientPlans()
        self._names: list[str] = []
        self._owners: list[torch.Tensor] = []
        self._captured: list[torch.Tensor] = []  # gradients that the log takes by reference until the step is over ...
        self._captured_versions: list[int] = []  # ... and their versions
        self._captures = 0  # of the running step
        self._hyper: list[dict[str, Any]] = []
        # Only of torch's own optimizers it is known that they leave gradients alone; see also `_wrote_gradients`.
        self._keeps_gradients = is_torchs(inner)
        self._amp: dict[str, Any] = {}
        self._clip: dict[str, Any] | None = None
        self._clipped: list[tuple[torch.Tensor, int]] = []
        self._is_image = False
        self._share: list[Portion] | None = None  # what of the gradients this rank logs; None for all
        self._began = time.perf_counter()
        self._rehearsal = StepRehearsal(inner)
        self._can_nest = can_nest(inner)
        self._scaler = ScalerWatch()
        self._pre = inner.register_step_pre_hook(_seen_compiled(torch.compiler.disable(self._before_step)))
        self._post = inner.register_step_post_hook(torch.compiler.disable(self._after_step))
        self.order_hooks()

    def order_hooks(self) -> None:
        """Ours last before and first after the step; users may have registered theirs since."""
        before: Any = self.inner._optimizer_step_pre_hooks
        if self._pre.id not in before:  # released
            return
        if next(reversed(before)) != self._pre.id:
            before.move_to_end(self._pre.id)
        after: Any = self.inner._optimizer_step_post_hooks
        if next(iter(after)) != self._post.id:
            after.move_to_end(self._post.id, last=False)

    def mark_called(self) -> None:
        """Tell learning-rate schedulers, which may hold the wrapper, that the optimizer stepped."""
        self.shell._opt_called = self.inner._opt_called = self.outer._opt_called = True  # type: ignore[attr-defined]

    def release(self) -> None:
        """Take the hooks off: the optimizer is a plain one again."""
        self._drop()
        self._pre.remove()
        self._post.remove()
        forget_places(self.outer)
        if hasattr(self.outer, "_tranlogs_run"):
            del self.outer._tranlogs_run

    def parameters(self) -> list[torch.Tensor]:
        """The optimizer's parameters, in order."""
        return [p for group in self.inner.param_groups for p in group["params"]]

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
    ) -> torch.Tensor:
        """Clip as torch does; the log holds the gradients as they were, and the norm (see `LoggedOptimizer`)."""
        trained = [p for group in self.outer.param_groups for p in group["params"]]
        parameters = [p for p in trained if settled(p) is not None]
        norm: Any = fsdp_wrapper.total_norm(self.run.modules, trained, norm_type, foreach)
        if norm is None:
            gradients = [p.grad for p in parameters if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients, norm_type, error_if_nonfinite, foreach)
        elif error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(f"The total norm of order {norm_type} is not finite: the gradients are not clipped")
        norm = norm.full_tensor() if is_part(norm) else norm  # of shards it is a sum that is not taken yet
        if self.run.is_active and self.log == "gradients":
            self._begin()
            self.recorder.wait()  # the gradients are about to be clipped in place
            self._clip = {"max_norm": float(max_norm), "norm": norm.detach().clone(), "foreach": foreach}
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm, foreach)
        self._clipped = self._gradient_versions() if self._clip is not None else []
        return norm  # type: ignore[no-any-return]

    def _log_weights(self, why: str) -> None:
        """From this step on: gradients are not enough for a redo. Said once."""
        if self.log == "weights":
            return
        self.log = "weights"
        _log.warning(
            "%s: optimizer %r (%s) logs weights and state from now on, not gradients: %s",
            self.run.run,
            self.name,
            type(self.inner).__name__,
            why,
        )

    # The step.

    def _before_step(self, inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_compiled: bool) -> Any:
        if not self.run.is_active or self._is_nested():
            return None
        if is_compiled:
            self._log_weights("its step is compiled, and rounds otherwise than the step that redo takes")
        if self._scaler.look():
            self.run.saw_scaler(self._scaler.scaler)
        self._scaler.check(self.outer, self.shell)
        self._captures = 0
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer itself
        if closure is None and next(reversed(inner._optimizer_step_pre_hooks)) == self._pre.id:
            self._capture()
            return None

        def closure_then_capture() -> Any:  # gradients exist only after the closure, or a later hook still changes them
            loss = closure() if closure is not None else None
            if self._captures:
                self._log_weights("it evaluates its closure several times a step")
            if self.log == "gradients" or not self._captures:
                self._capture()
            return loss

        self.run.before_step()  # also where the optimizer never calls the closure: the outcome is logged then
        if len(args) > 1:
            return (args[0], closure_then_capture, *args[2:]), kwargs
        return args, {**kwargs, "closure": closure_then_capture}

    def _is_nested(self) -> bool:
        return self._can_nest and is_nested(self.inner)

    def _capture(self) -> None:
        """What the step is about to consume."""
        if self.log == "weights" and not self._is_image:  # found out after the gradients were clipped
            self._drop()
        if self._clip is not None and not self._is_as_clipped():
            self._drop()
        if self._clip is None:
            self._begin()
        if self.log == "gradients" and (why := self._rehearsal.before_step()):
            self._log_weights(why)
            self._begin()
        if not self._keeps_gradients:
            self.recorder.wait()
        self._captured = [] if self._is_image else [p.grad for p in self._owners if p.grad is not None]
        self._captured_versions = [version_of(g) for g in self._captured] if KNOWN else versions(self._captured)
        self.run.auxiliary.gradients.before_step(self.name)
        self._hyper = self._values.now()
        self._amp = {
            key: getattr(self.inner, key).detach().clone()
            for key in ("grad_scale", "found_inf")
            if isinstance(getattr(self.inner, key, None), torch.Tensor)
        }
        self._captures += 1
        self._began = time.perf_counter()

    def _is_as_clipped(self) -> bool:
        """Whether nothing happened since the gradients were logged and clipped that the record does not hold."""
        now = self._gradient_versions()
        return (
            (self._is_image or self.recorder.is_open)
            and len(now) == len(self._clipped)
            and all(a is b and u == v for (a, u), (b, v) in zip(now, self._clipped, strict=True))
            and not self.run.has_changed()
        )

    def _begin(self) -> None:
        """Note foreign writes, then put the gradients into a new record."""
        self._drop()
        run = self.run
        run.before_step()
        self._is_image = self.log == "weights" or self._has_foreign_strides()
        if self._is_image:
            return
        try:
            payload = self._payload()
        except LogUnavailable as error:  # a full ring whose writer hangs
            run.journal.suspend(error)
            return
        self.recorder.begin(payload)
        run.state.fingerprint.note_logged(payload.nbytes)

    def _payload(self) -> Payload:
        """The gradients' bytes: by a plan, or one by one where there is none."""
        run, parameters = self.run, self.parameters()
        if len(parameters) != len(self._owners) or not all(map(is_, parameters, self._owners)):
            name_of = run.state.name_of
            self._owners, self._names = parameters, [f"grad/{name_of[id(p)]}" for p in parameters]
        if run.staging is None and run.coordinator.is_single:
            payload = self._plans.payload(self._names, [p.grad for p in parameters])
            if payload is not None:
                return payload
        return self._general_payload()

    def _general_payload(self) -> Payload:
        run = self.run
        present = [(n, p) for n, p in zip(self._names, self._owners, strict=True) if settled(p) is not None]
        found = [(name, local(p.grad)) for name, p in present if p.grad is not None]
        self._share = run.coordinator.share(self, found)
        if self._share is not None:
            found = [(portion.name, portion.tensor) for portion in self._share]
        if run.staging is not None:
            if self._share is not None:
                layout = Layout(portion.spec() for portion in self._share)
            else:
                owned = zip(found, present, strict=True)
                layout = Layout(spec_of(name, gradient, owner) for (name, gradient), (_, owner) in owned)
            return run.staging.stage(layout, [gradient for _, gradient in found])
        contents: Iterable[AnyArray] = (to_array(gradient) for _, gradient in found)
        if self._share is not None:
            contents = (portion.placed(content) for portion, content in zip(self._share, contents, strict=True))
        else:
            contents = (placed(content, owner) for content, (_, owner) in zip(contents, present, strict=True))
        return Payload.of(zip((name for name, _ in found), contents, strict=True))

    def _wrote_gradients(self) -> bool:
        """Whether the step wrote to gradients that the log was still reading."""
        captured, self._captured = self._captured, []
        now = [version_of(g) for g in captured] if KNOWN else versions(captured)
        return now != self._captured_versions

    def _after_step(self, inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_nested():
            return
        run = self.run
        self.mark_called()
        mark_used(self.outer)
        run.journal.recovery_speed.observe_step(time.perf_counter() - self._began)
        if not run.is_active:
            return
        if why := self._rehearsal.after_step(self._amp):
            self._log_weights(why)
        if self._wrote_gradients() and self._keeps_gradients and self.recorder.is_open:
            self._keeps_gradients = False  # from the next step on they are written before it; this one's are lost
            self._drop()
            self._is_image = True
        if self.watch.after_step() and self.recorder.is_open:  # what wrote to its state before the step is not in the log
            self._drop()
            self._is_image = True
        if not self._captures or self.log == "weights":  # not even its closure was called, or gradients do not tell it all
            self._drop()
            self._is_image = True
        body: dict[str, Any] = {
            "record": "weights" if self._is_image else "gradients",
            "optimizer": self.name,
            "hyper": self._hyper,
            "fingerprint": run.state.fingerprint.kind,
        }
        if self._amp:
            body["amp"] = self._amp
        if self._clip is not None and not self._is_image:
            body["clip"] = self._clip
        if self._share is not None and not self._is_image:
            body["share"] = (run.coordinator.rank, run.coordinator.world)
            body["copies"] = run.coordinator.copies
        digests = run.digests().tobytes()
        if self._is_image:
            payload = run.after_image(self._image(body), every_step=self.log == "weights")
            self.recorder.log_image(payload or NO_TENSORS, body, digests)  # without one it only counts the step
        else:
            self.recorder.commit(body, digests, is_frozen=True)
        self._captures = 0
        self._forget_clip()
        run.after_step(self.name)

    def _image(self, body: dict[str, Any]) -> list[Tensor]:
        """After-image: the parameters, and the optimizer's state unless the user does without."""
        run, convert = self.run, self.run.state.convert
        tensors: list[Tensor] = [(f"param/{run.state.name_of[id(p)]}", array_of(p, p, convert)) for p in self.parameters()]
        if self.with_state:
            found, rest = run.state.state_tensors(self.name, convert)
            tensors += found
            body["state"] = {self.name: rest}
        else:
            body["is_stateless"] = True
        body["is_whole"] = True  # what the steps before did to these parameters need not be redone
        return tensors

    def _drop(self) -> None:
        self.recorder.discard()
        self._captured = []
        self._rehearsal.forget()
        self._forget_clip()

    def _forget_clip(self) -> None:
        self._clip, self._clipped = None, []

    def _gradient_versions(self) -> list[tuple[torch.Tensor, int]]:
        """Each gradient with a number that changes when it is written to."""
        return [(p.grad, version_of(p.grad)) for p in self.parameters() if p.grad is not None]

    def _has_foreign_strides(self) -> bool:
        """Fused kernels go by memory order: a gradient laid out otherwise than its parameter cannot be told from values."""
        return any(
            p.grad is not None and p.grad.layout is torch.strided and local(p.grad).stride() != local(p).stride()
            for group in self.inner.param_groups
            if group.get("fused")
            for p in group["params"]
        )


def _seen_compiled(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, told whether the step that it stands before is traced: then this is, too, and the answer is compiled in."""

    def told(inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return hook(inner, args, kwargs, torch.compiler.is_compiling())

    return told
