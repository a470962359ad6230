"""One optimizer of a run: hooks on the inner optimizer capture what each step consumes.

Pre-hook last, post-hook first, on the inner optimizer: whoever steps it (the wrapper, the user, a GradScaler), the step
is seen once; what other hooks do to gradients is captured, what they do to weights afterwards is a write like any other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch

from tranlogs.base.errors import LogUnavailable, UsageError
from tranlogs.records import NO_TENSORS, Tensor, tree
from tranlogs.training import StepRecorder

from ..sharding.shards import array_of, is_by_element, is_part, settled
from ..state.group_values import GroupValues
from ..state.pending_gradients import mark_used
from ..state.state_watch import StateWatch
from ..tensors.arrays import adapt, local
from .gradients import CapturedGradients, Clipping, GradientPayloads
from .logged_run import LoggedRun
from .reduced_gradients import Reduction
from .single_step import StepRehearsal, can_nest, is_nested

_log = logging.getLogger("tranlogs")

# Returns None if nothing is compiled now. A torch that does not say so lets every call pass through its wrapper.
_get_compiler = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: False)

_KNOWN = frozenset({"closure", "grad_scaler"})  # arguments of a step that redo has, or does without

Hook = Callable[..., Any]  # of an optimizer: it takes the optimizer, and the arguments of the step

LogKind = Literal["gradients", "weights", "inputs", "gradients:bf16", "gradients:int8"]


@dataclass(slots=True)
class _RunningStep:
    """What is known of the step that the optimizer is taking.

    Attributes:
        captures: how often its gradients were captured: a closure may be evaluated several times.
        is_reduced: True once its gradients are rounded, if they are to be.
        is_image: True if the step logs an after-image in place of gradients.
        hyper: settings of the parameter groups that it uses.
        amp: tensors with which a GradScaler lets a fused step unscale and skip.
        began: when the optimizer began to step, in seconds of `time.perf_counter`.
    """

    captures: int = 0
    is_reduced: bool = False
    is_image: bool = False
    hyper: list[dict[str, Any]] = field(default_factory=list)
    amp: dict[str, Any] = field(default_factory=dict)
    began: float = 0.0


class OptimizerHooks:
    """The hooks on one optimizer of a run: they log its steps.

    It has more attributes than most classes: the parts of one step meet here, and each of them is a class of its own.

    Attributes:
        run: the run to which steps are logged.
        name: of the optimizer in the run.
        inner: the optimizer.
        shell: the LoggedOptimizer around it, as soon as there is one.
        setting: what the script asks for.
        log: "gradients", "weights" or "inputs"; an optimizer that cannot be redone from gradients logs weights once that is
            found out, and one that logs no tensors ("inputs") only counts its steps.
        reduction: to what gradients are rounded before the optimizer and the log have them; None if they are not.
        with_state: True if an after-image includes the optimizer's state.
        values: reads its hyper-parameters.
        watch: sees writes to the optimizer's state between steps.
        recorder: writes the records of the steps.
        before, after: what the hooks call now; see `install`.
        is_capturing: True if the steps are captured.
        is_counted: True if a step was only counted since the newest record, so that the next one is like it.
    """

    def __init__(self, run: LoggedRun, name: str, inner: torch.optim.Optimizer, log: LogKind, *, optimizer_state: bool) -> None:
        self.run, self.name, self.inner, self.setting = run, name, inner, log
        kind, _, reduction = log.partition(":")
        self.log = cast('Literal["gradients", "weights", "inputs"]', kind)
        self.reduction = cast("Reduction | None", reduction or None)
        self.values = GroupValues(inner)
        tree.encode(self.values.now(), path=f"optimizer {name!r}.param_groups", adapt=adapt)
        if self.log == "gradients" and isinstance(inner, torch.optim.LBFGS):
            self.log = "weights"
            _log.warning(
                "LBFGS evaluates its closure many times per step, so a step cannot be redone from gradients; its weights "
                "and state are logged instead"
            )
        if self.log == "gradients" and not is_by_element(inner) and any(map(is_part, self.parameters())):
            self.log = "weights"
            _log.warning(
                "%s: its parameters are sharded, and its update is not known to be elementwise; its weights and state are "
                "logged instead of gradients",
                type(inner).__name__,
            )
        self.shell: Any = self.inner
        self.with_state = optimizer_state or self.log == "gradients"
        self.watch = StateWatch(inner)
        self.recorder = StepRecorder(run.journal)
        self._payloads = GradientPayloads(run, name, inner, self.reduction)
        self._gradients = CapturedGradients(inner)
        self._clipping = Clipping()
        self._step = _RunningStep()
        self._rehearsal = StepRehearsal(inner)
        self._can_nest = can_nest(inner)
        self._is_clean = True  # nothing is noted of a step that has not come to its end
        self.is_counted = False
        self.before: Hook = self._before_step
        self.after: Hook = self._after_step
        self.install()
        self._pre = inner.register_step_pre_hook(_uncompiled(self, "before", asks=True))
        self._post = inner.register_step_post_hook(_uncompiled(self, "after"))
        self.order_hooks()

    def install(self) -> None:
        """Capture the steps that come, or only count them, as the run logs them with their tensors or without."""
        self.is_counted, self.is_capturing = False, self.run.rung.logs_tensors
        if self.is_capturing:
            self.before, self.after = self._before_step, self._after_step
        else:
            self.before, self.after = self._before_counted, self._after_counted

    def switch_off(self) -> None:
        """Neither capture nor count steps from now on."""
        self.is_capturing, self.before, self.after = False, _ignore, _ignore

    def order_hooks(self) -> None:
        """Keep the pre-hook last and the post-hook first, even if the script has registered hooks since."""
        before: Any = self.inner._optimizer_step_pre_hooks
        if self._pre.id not in before:
            self._report_unlogged()
            return
        if next(reversed(before)) != self._pre.id:
            before.move_to_end(self._pre.id)
        after: Any = self.inner._optimizer_step_post_hooks
        if next(iter(after)) != self._post.id:
            after.move_to_end(self._post.id, last=False)

    def _report_unlogged(self) -> None:
        """Warn once that steps on a closed run are not logged."""
        if not self.run.has_reported_unlogged:
            self.run.has_reported_unlogged = True
            _log.warning("%s: the run is closed: this step and later steps are not logged", self.run.run)

    def mark_called(self) -> None:
        """Tell learning-rate schedulers, which may hold the wrapper, that the optimizer stepped."""
        self.shell._opt_called = self.inner._opt_called = True  # type: ignore[attr-defined]

    def release(self) -> None:
        """Take the hooks off: the optimizer is a plain one again."""
        self._drop()
        self._pre.remove()
        self._post.remove()
        if hasattr(self.inner, "_tranlogs_run"):
            del self.inner._tranlogs_run

    def parameters(self) -> list[torch.Tensor]:
        """The optimizer's parameters, in order."""
        found: list[torch.Tensor] = []
        for group in self.inner.param_groups:
            found += group["params"]
        return found

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
    ) -> torch.Tensor:
        """Clip as torch does; the log holds the gradients as they were, and the norm (see `LoggedOptimizer`)."""
        parameters = [p for p in self.parameters() if settled(p) is not None]
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm: Any = torch.nn.utils.get_total_norm(gradients, norm_type, error_if_nonfinite, foreach)
        norm = norm.full_tensor() if is_part(norm) else norm  # of shards it is a sum that is not taken yet
        if self.is_capturing and self.log == "gradients" and self.reduction is None:
            self._begin()
            self.recorder.wait()  # the gradients are about to be clipped in place
            self._clipping.begin(max_norm, norm, foreach)
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm, foreach)
        self._clipping.end(self.parameters())
        return norm  # type: ignore[no-any-return]

    def _log_weights(self, why: str) -> None:
        """Log weights from this step on, because gradients are not enough for a redo. Warn once."""
        if self.log == "weights":
            return
        self.log = "weights"
        _log.warning(
            "%s: optimizer %r (%s) now logs weights and state instead of gradients: %s",
            self.run.run,
            self.name,
            type(self.inner).__name__,
            why,
        )

    # The step.

    def _before_step(self, inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_compiled: bool = False) -> Any:
        if self._can_nest and is_nested(self.inner):
            return None
        if is_compiled:
            self._log_weights("its compiled step rounds differently from the step that redo executes")
        if len(args) > 2 or not kwargs.keys() <= _KNOWN:  # args[0] is the optimizer itself, then comes the closure
            self._log_weights("its step is given arguments, which redo does not have")
        for scaler in self.run.auxiliary.scalers:
            self._demand_one_id(scaler)
        self._step.captures, self._step.is_reduced = 0, False
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer itself
        if closure is None and next(reversed(inner._optimizer_step_pre_hooks)) == self._pre.id:
            self._capture()
            return None

        def closure_then_capture() -> Any:  # gradients exist only after the closure, or a later hook still changes them
            loss = closure() if closure is not None else None
            if self._step.captures and self.reduction is not None:
                raise UsageError(
                    f'log="gradients:{self.reduction}": optimizer {self.name!r} ({type(self.inner).__name__}) evaluates its '
                    'closure several times per step, and its gradients cannot be rounded once. Use log="weights"'
                )
            if self._step.captures:
                self._log_weights("it evaluates its closure several times per step")
            if self.log == "gradients" or not self._step.captures:
                self._capture()
            return loss

        self.run.phase.before_step()  # also where the optimizer never calls the closure: the outcome is logged then
        if len(args) > 1:
            return (args[0], closure_then_capture, *args[2:]), kwargs
        return args, {**kwargs, "closure": closure_then_capture}

    def _demand_one_id(self, scaler: torch.amp.GradScaler) -> None:
        """Refuse gradients that were unscaled under one id and are stepped under the other.

        Raises:
            UsageError: the scaler was given the wrapper once and the plain optimizer once, since its last update.
        """
        known = scaler._per_optimizer_states
        if self.shell is not self.inner and id(self.inner) in known and id(self.shell) in known:
            raise UsageError(
                "the GradScaler received the LoggedOptimizer in one call and the wrapped optimizer in another (unscale_, "
                "step). It treats them as two optimizers and unscales the gradients twice. Pass the LoggedOptimizer to both "
                "calls"
            )

    def _capture(self) -> None:
        """Note what the step is about to consume."""
        step, clipping = self._step, self._clipping
        if self.log == "weights" and not step.is_image:  # found out after the gradients were clipped
            self._drop()
        if clipping.recorded is not None and not self._is_as_clipped():
            self._drop()
        if clipping.recorded is None:
            self._begin()
        if self._rehearsal.is_needed and self.log == "gradients" and (why := self._rehearsal.before_step()):
            self._log_weights(why)
            self._begin()
        if not self._gradients.are_kept:
            self.recorder.wait()
        self._gradients.capture([] if step.is_image else self._payloads.owners)
        self.run.auxiliary.gradients.before_step(self.name)
        step.hyper = self.values.now()
        step.amp = self._read_amp() if hasattr(self.inner, "grad_scale") or hasattr(self.inner, "found_inf") else {}
        step.captures += 1
        step.began = time.perf_counter()

    def _read_amp(self) -> dict[str, Any]:
        given = {key: getattr(self.inner, key, None) for key in ("grad_scale", "found_inf")}
        return {key: value.detach().clone() for key, value in given.items() if isinstance(value, torch.Tensor)}

    def _is_as_clipped(self) -> bool:
        """Whether nothing happened since the gradients were logged and clipped that the record does not hold."""
        return (
            (self._step.is_image or self.recorder.is_open)
            and self._clipping.is_current(self.parameters())
            and not self.run.writes.has_changed()
        )

    def _begin(self) -> None:
        """Note foreign writes, then put the gradients into a new record."""
        if not self._is_clean:
            self._drop()
        self._is_clean = False
        run = self.run
        run.phase.before_step()
        parameters = self.parameters()
        if not self._step.is_reduced:  # also where an image is logged: what is trained must not depend on what is logged
            self._step.is_reduced = True
            if self.reduction is not None:
                self._payloads.reduce(parameters, run.journal.step)
        self._step.is_image = self.log == "weights" or self._has_foreign_strides()
        if self._step.is_image:
            return
        try:
            payload = self._payloads.payload(parameters)
        except LogUnavailable as error:  # a full ring whose writer hangs
            run.journal.suspend(error)
            return
        self.recorder.begin(payload)
        run.state.named.fingerprint.note_logged(payload.nbytes)

    def _after_step(self, inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._can_nest and is_nested(self.inner):
            return
        run = self.run
        mark_used(inner)
        self.mark_called()
        run.journal.checkpoints.speed.observe_step(time.perf_counter() - self._step.began)
        if self._rehearsal.is_needed and (why := self._rehearsal.after_step(self._step.amp)):
            self._log_weights(why)
        if self._needs_image():
            self._drop()
            self._step.is_image = True
        body = self._body()
        digests = run.writes.digests(run.journal.step + 1).tobytes()
        if self._step.is_image:
            payload = run.writes.after_image(self._image(body), every_step=self.log == "weights")
            self.recorder.log_image(payload or NO_TENSORS, body, digests)  # without one it only counts the step
        else:
            self.recorder.commit(body, digests, is_frozen=True)
        self._step.captures = 0
        if self._clipping.recorded is not None:
            self._clipping.forget()
        self._is_clean = True
        run.phase.after_step(self.name)

    def _before_counted(self, inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_compiled: bool = False) -> Any:
        if self.is_counted or (self._can_nest and is_nested(self.inner)):  # all is as it was at the step before
            return None
        self.run.phase.before_step()  # which may begin to log tensors
        if self.is_capturing:
            return self._before_step(inner, args, kwargs, is_compiled)
        self.run.auxiliary.gradients.before_step(self.name)
        return None

    def _after_counted(self, inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._can_nest and is_nested(self.inner):
            return
        run = self.run
        mark_used(inner)
        if not self.is_counted:
            self.mark_called()
        self.is_counted = True
        run.journal.count_step()
        run.phase.after_step(self.name)

    def _needs_image(self) -> bool:
        """Return True if the gradients that were captured do not tell all that the step did."""
        needs_image = False
        if self._gradients.were_written() and self._gradients.are_kept and self.recorder.is_open:
            self._gradients.are_kept = False  # from the next step on they are written before it; this one's are lost
            needs_image = True
        if self.watch.after_step() and self.recorder.is_open:  # what wrote to its state before the step is not in the log
            needs_image = True
        return needs_image or not self._step.captures or self.log == "weights"  # not even its closure may have been called

    def _body(self) -> dict[str, Any]:
        """Return the body of the step's record, without the state of an after-image."""
        step, clip, share = self._step, self._clipping.recorded, self._payloads.share
        body: dict[str, Any] = {
            "record": "weights" if step.is_image else "gradients",
            "optimizer": self.name,
            "hyper": step.hyper,
            "fingerprint": self.run.state.named.fingerprint.kind,
        }
        if step.amp:
            body["amp"] = step.amp
        if clip is not None and not step.is_image:
            body["clip"] = clip
        if share is not None and not step.is_image:
            body["share"] = (self.run.coordinator.rank, self.run.coordinator.world)
            body["copies"] = self.run.coordinator.copies
        return body

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
        self._is_clean = True
        self.recorder.discard()
        self._gradients.forget()
        self._rehearsal.forget()
        self._clipping.forget()

    def _has_foreign_strides(self) -> bool:
        """Return True if a fused step has a gradient whose strides differ from its parameter's: such kernels follow memory."""
        for group in self.inner.param_groups:
            if group.get("fused") and any(
                p.grad is not None and p.grad.layout is torch.strided and local(p.grad).stride() != local(p).stride()
                for p in group["params"]
            ):
                return True
        return False


def _ignore(inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_compiled: bool = False) -> None:
    """Do nothing before or after a step."""


def _uncompiled(hooks: OptimizerHooks, name: str, *, asks: bool = False) -> Hook:
    """Return a hook that torch.compile leaves alone: neither the hook nor what it calls is compiled.

    Args:
        hooks: of the optimizer.
        name: of the attribute that has the hook.
        asks: True if it takes one more argument: whether torch.compile traces the step. If so, the value is compiled in.
    """

    def call_hook(*given: Any) -> Any:
        return getattr(hooks, name)(*given)

    kept_out: Any = torch.compiler.disable(call_hook)

    def call(inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling():
            return kept_out(inner, args, kwargs, True) if asks else kept_out(inner, args, kwargs)
        # Where nothing would be compiled now, the wrapper is saved.
        return getattr(hooks, name)(inner, args, kwargs) if _get_compiler() is None else kept_out(inner, args, kwargs)

    return call
