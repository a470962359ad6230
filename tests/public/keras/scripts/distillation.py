"""A student learns from a teacher's softened outputs: a model with a loss of its own."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from tests.kills.keras import Job
from tests.public.keras.data import digits


class Distiller(keras.Model):
    def __init__(self, student: keras.Model, teacher: keras.Model) -> None:
        super().__init__()
        self.student, self.teacher = student, teacher
        self.alpha, self.temperature = 0.1, 10.0

    def compile(self, distillation_loss_fn: Any, student_loss_fn: Any, **options: Any) -> None:
        super().compile(**options)
        self.student_loss_fn, self.distillation_loss_fn = student_loss_fn, distillation_loss_fn

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **_: Any) -> Any:
        softened = [ops.softmax(out / self.temperature, axis=1) for out in (self.teacher(x, training=False), y_pred)]
        distilled = self.distillation_loss_fn(*softened) * self.temperature**2
        return self.alpha * self.student_loss_fn(y, y_pred) + (1 - self.alpha) * distilled

    def call(self, x: Any) -> Any:
        return self.student(x)


def made(units: int, name: str) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(units, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ],
        name=name,
    )


def train(job: Job) -> None:
    keras.utils.set_random_seed(131)
    x, y = digits(90)
    teacher, student = made(8, "teacher"), made(3, "student")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    teacher.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    teacher.fit(x, y, epochs=1, batch_size=32, verbose=0)  # a teacher that nobody logs
    distiller = Distiller(student, teacher)
    distiller.compile(
        optimizer=keras.optimizers.Adam(0.01),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        student_loss_fn=loss,
        distillation_loss_fn=keras.losses.KLDivergence(),
    )
    history = distiller.fit(x, y, epochs=3, batch_size=16, verbose=2, callbacks=job.callbacks())
    job.say("student", ops.sum(student(x[:4])))
    job.keep(model=distiller, history=history)
