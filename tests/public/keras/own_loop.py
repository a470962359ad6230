"""Training loops from scratch in the style of Keras's guides: the script computes the gradients and applies them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.kills.keras import Job
from tranlogs_keras import LoggedOptimizer

EPOCHS, ROWS, BATCH = 3, 80, 16


def arrays() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(ROWS, 8)).astype("float32"), draw.integers(0, 3, ROWS)


def classifier() -> keras.Model:
    layers = keras.layers
    inputs = keras.Input((8,))
    x = layers.Dense(16, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3))(inputs)
    x = layers.Dropout(0.2)(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.Dense(3)(x))


def made(kind: str) -> Any:
    rate = keras.optimizers.schedules.CosineDecay(1e-2, 15) if kind == "schedule" else 1e-2
    if kind == "scaled":
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2), initial_scale=1024.0, dynamic_growth_steps=4)
    return {"sgd": keras.optimizers.SGD(rate, momentum=0.9)}.get(kind) or keras.optimizers.Adam(rate)


def guide(job: Job, eager: bool = False, tracks: bool = True, kind: str = "adam", every: Any = 4) -> None:
    """Keras's guide to a loop from scratch on TensorFlow: metrics, regularisation losses, a shuffled pipeline, validation."""
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    x, y = arrays()
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=5).batch(BATCH)
    validation = tf.data.Dataset.from_tensor_slices((x[:32], y[:32])).batch(BATCH)
    model, plain = classifier(), made(kind)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy, checked = keras.metrics.SparseCategoricalAccuracy(), keras.metrics.SparseCategoricalAccuracy()
    mean_loss = keras.metrics.Mean()
    optimizer: Any = plain
    if job.run is not None:
        optimizer = job.wrap(plain, model, checkpoint_every=every)
        if tracks:
            optimizer.track(accuracy=accuracy, checked=checked, mean_loss=mean_loss)

    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_of(y, logits) + sum(model.losses)
            scaled = optimizer.scale_loss(loss) if kind == "scaled" else loss
        gradients = tape.gradient(scaled, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights))
        accuracy.update_state(y, logits)
        mean_loss.update_state(loss)

    step = train_step if eager else tf.function(train_step)
    printed = {}
    for epoch in range(EPOCHS) if job.run is None else optimizer.epochs(EPOCHS):
        if job.run is None or epoch.batch == 0:
            accuracy.reset_state()
            mean_loss.reset_state()
        for xs, ys in data if job.run is None else optimizer.batches(data):
            step(xs, ys)
            job.at("batch")
        for xs, ys in validation:
            checked.update_state(ys, model(xs, training=False))
        printed[int(epoch)] = [float(mean_loss.result()), float(accuracy.result()), float(checked.result())]
        checked.reset_state()
        job.at("epoch")
    if job.run is not None:
        optimizer.close()
    job.keep(state=[model, plain, accuracy, checked], history=[printed.get(EPOCHS - 1)], drawn=np.random.normal())


def gan(job: Job, rewrites: bool = True) -> None:
    """DCGAN: two optimizers in one compiled step, noise from a seed generator.

    Without `rewrites`, TensorFlow computes the operations as they are written, with and without TranLogs.
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not rewrites})
    keras.utils.set_random_seed(2)
    x, _ = arrays()
    data = tf.data.Dataset.from_tensor_slices(x).shuffle(ROWS, seed=3).batch(BATCH)
    layers = keras.layers
    generator = keras.Sequential(
        [keras.Input((4,)), layers.Dense(12), layers.BatchNormalization(), layers.ReLU(), layers.Dense(8)]
    )
    critic = keras.Sequential([keras.Input((8,)), layers.Dense(12), layers.LeakyReLU(), layers.Dropout(0.3), layers.Dense(1)])
    plain_g, plain_c = keras.optimizers.Adam(1e-2), keras.optimizers.Adam(2e-2)
    seeds = keras.random.SeedGenerator(9)
    g_loss, c_loss = keras.metrics.Mean(), keras.metrics.Mean()
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    g_optimizer: Any = plain_g
    c_optimizer: Any = plain_c
    if job.run is not None:
        g_optimizer = job.wrap(plain_g, generator, checkpoint_every=4)
        c_optimizer = g_optimizer.add_optimizer(plain_c, "critic", critic)
        g_optimizer.track(seeds=seeds, g_loss=g_loss, c_loss=c_loss)

    @tf.function
    def train_step(images: Any) -> Any:
        noise = keras.random.normal((BATCH, 4), seed=seeds)
        with tf.GradientTape() as g_tape, tf.GradientTape() as c_tape:
            made = generator(noise, training=True)
            real, fake = critic(images, training=True), critic(made, training=True)
            of_g = entropy(tf.ones_like(fake), fake)
            of_c = entropy(tf.ones_like(real), real) + entropy(tf.zeros_like(fake), fake)
        for_g = g_tape.gradient(of_g, generator.trainable_variables)
        for_c = c_tape.gradient(of_c, critic.trainable_variables)
        g_optimizer.apply_gradients(zip(for_g, generator.trainable_variables))
        c_optimizer.apply_gradients(zip(for_c, critic.trainable_variables))
        g_loss.update_state(of_g)
        c_loss.update_state(of_c)
        return of_g

    printed = []
    for epoch in range(EPOCHS) if job.run is None else g_optimizer.epochs(EPOCHS, data):
        for images in data if job.run is None else epoch:
            train_step(images)
            job.at("batch")
        printed = [int(epoch), float(g_loss.result()), float(c_loss.result())]
        g_loss.reset_state()
        c_loss.reset_state()
        job.at("epoch")
    if job.run is not None:
        g_optimizer.close()
    job.keep(state=[generator, critic, plain_g, plain_c], history=printed)


def torch_guide(job: Job) -> None:
    """Keras's guide to a loop from scratch on PyTorch."""
    import torch

    keras.utils.set_random_seed(1)
    x, y = arrays()
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), batch_size=BATCH, shuffle=True
    )
    model, plain = classifier(), keras.optimizers.Adam(1e-2)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    optimizer: Any = plain
    if job.run is not None:
        optimizer = job.wrap(plain, model, checkpoint_every=4).track(accuracy=accuracy)
    printed = []
    for epoch in range(EPOCHS) if job.run is None else optimizer.epochs(EPOCHS, loader):
        for xs, ys in loader if job.run is None else epoch:
            logits = model(xs, training=True)
            loss = loss_of(ys, logits)
            model.zero_grad()
            loss.backward()
            weights = list(model.trainable_weights)
            gradients = [v.value.grad for v in weights]
            with torch.no_grad():
                optimizer.apply(gradients, weights)
            accuracy.update_state(ys, logits)
            job.at("batch")
        printed = [int(epoch), float(accuracy.result())]
        accuracy.reset_state()
        job.at("epoch")
    if job.run is not None:
        optimizer.close()
    job.keep(state=[model, plain, accuracy], history=printed)


def has_recovered_weights(run: str, path: str) -> bool:
    """Return True if a file of weights holds what a process that goes on with the run of `torch_guide` recovers."""
    models = [classifier() for _ in range(2)]
    optimizer = LoggedOptimizer(keras.optimizers.Adam(1e-2), run, models[0], recheck=False)
    optimizer.track(accuracy=keras.metrics.SparseCategoricalAccuracy()).recover()
    models[1].load_weights(path)
    recovered, loaded = ([value.tobytes() for value in model.get_weights()] for model in models)
    return recovered == loaded  # such a file has no counters of Dropout
