"""WGAN with a gradient penalty: three steps of the critic, then one of the generator, in each train step."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from tests.kills.keras import Job
from tests.public.keras.data import digits, gradients_of

LATENT, CRITIC_STEPS, PENALTY = 4, 3, 10.0


def gradient_by_input(function: Any, inputs: Any) -> Any:
    """Return the gradient of a function by its input, which can itself be derived."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(inputs)
        return tape.gradient(outputs, inputs)
    import torch

    inputs = inputs.detach().requires_grad_(True)
    return torch.autograd.grad(function(inputs).sum(), inputs, create_graph=True)[0]


class WGAN(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.critic = keras.Sequential(
            [keras.Input((64,)), layers.Dense(12), layers.LeakyReLU(negative_slope=0.2), layers.Dropout(0.3), layers.Dense(1)]
        )
        self.generator = keras.Sequential(
            [keras.Input((LATENT,)), layers.Dense(12, use_bias=False), layers.BatchNormalization(), layers.Dense(64)]
        )
        self.seeds = keras.random.SeedGenerator(11)
        self.built = True

    def compile(self, c_optimizer: Any, g_optimizer: Any) -> None:
        super().compile()
        self.c_optimizer, self.g_optimizer = c_optimizer, g_optimizer

    def critic_loss(self, real: Any, fake: Any, share: Any) -> Any:
        scores = ops.mean(self.critic(fake, training=True)) - ops.mean(self.critic(real, training=True))
        mixed = real + share * (fake - real)
        gradients = gradient_by_input(lambda x: self.critic(x, training=True), mixed)
        norm = ops.sqrt(ops.sum(ops.square(gradients), axis=1) + 1e-12)
        return scores + PENALTY * ops.mean((norm - 1.0) ** 2)

    def train_step(self, data: Any) -> Any:
        real = data[0] if isinstance(data, (tuple, list)) else data
        count = ops.shape(real)[0]
        c_loss = None
        for _ in range(CRITIC_STEPS):
            noise = keras.random.normal((count, LATENT), seed=self.seeds)
            share = keras.random.uniform((count, 1), seed=self.seeds)
            fake = ops.stop_gradient(self.generator(noise, training=True))
            weights = self.critic.trainable_variables
            c_loss, gradients = gradients_of(lambda f=fake, s=share: self.critic_loss(real, f, s), weights)
            self.c_optimizer.apply_gradients(zip(gradients, weights))
        noise = keras.random.normal((count, LATENT), seed=self.seeds)
        weights = self.generator.trainable_variables
        g_loss, gradients = gradients_of(lambda: -ops.mean(self.critic(self.generator(noise, training=True))), weights)
        self.g_optimizer.apply_gradients(zip(gradients, weights))
        return {"c_loss": c_loss, "g_loss": g_loss}


def train(job: Job) -> None:
    keras.utils.set_random_seed(6)
    x, _ = digits(64)
    model = WGAN()
    rates = [keras.optimizers.Adam(learning_rate=2e-3, beta_1=0.5, beta_2=0.9) for _ in range(2)]
    model.compile(*rates)
    history = model.fit(x.reshape(-1, 64), batch_size=16, epochs=3, verbose=2, callbacks=job.callbacks())
    job.keep(model=model, history=history)
