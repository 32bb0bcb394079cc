"""Tests low-rank adapters of frozen models."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import tiny_model
from tests.marks import together
from tff_pfl import models
from tff_pfl.models import lora
from tff_pfl.testing.federation import IMAGE_SHAPE
from tff_pfl.tracing import frozen

X = np.random.default_rng(0).uniform(0, 255, (4, *IMAGE_SHAPE)).astype(np.float32)


def outputs(model, weights, x=X):
    return model.apply(weights, x, training=False, seed=tf.zeros([2], tf.int32))


def drawn(parts, seed=1):
    rng = np.random.default_rng(seed)
    return tf.nest.map_structure(lambda p: tf.constant(rng.normal(size=p.shape), tf.float32), parts)


def test_start_is_the_frozen_model_bit_for_bit():
    base = tiny_model().starting_from(tiny_model().init(3))
    model = lora(base, rank=2)
    assert model.layers == ("dense1_down", "dense1_up", "head_down", "head_up")
    for seed in (0, 5):
        assert np.array_equal(outputs(model, model.init(seed)), outputs(base, base.init(0)))
    assert not np.array_equal(*(model.init(s)["dense1_down"]["kernel"] for s in (0, 5)))


@pytest.mark.parametrize("alpha", [None, 6.0])
def test_kernels_are_the_frozen_ones_and_products(alpha):
    """W = K + alpha / rank * down @ up, in NumPy."""
    base = tiny_model()
    model = lora(base, ["dense1"], rank=3, alpha=alpha, trained=["head"])
    parts = drawn(model.init(0))
    assert list(parts) == ["dense1_down", "dense1_up", "head"]
    weights = tf.nest.map_structure(np.array, base.init(0))
    product = np.array(parts["dense1_down"]["kernel"]) @ np.array(parts["dense1_up"]["kernel"])
    weights["dense1"]["kernel"] += (1.0 if alpha is None else 2.0) * product
    weights["head"] = parts["head"]
    np.testing.assert_allclose(outputs(model, parts), outputs(base, weights), rtol=1e-4)


def test_adapter_of_full_rank_reaches_any_kernel():
    base = tiny_model()
    kernel = np.array(base.init(0)["head"]["kernel"])
    model = lora(base, ["head"], rank=5)
    parts, other = model.init(0), drawn(base.init(0))["head"]["kernel"]
    parts["head_down"] = {"kernel": tf.eye(5)}
    parts["head_up"] = {"kernel": other - kernel}
    weights = base.init(0)
    weights["head"]["kernel"] = other
    np.testing.assert_allclose(outputs(model, parts), outputs(base, weights), rtol=1e-4, atol=1e-5)


def test_second_adapter_has_its_share():
    """FedDPA: W = K + (1 - share) * shared + share * own."""
    base = tiny_model()
    model = lora(base, ["head"], rank=2, own_share=0.25)
    parts = drawn(model.init(0))
    assert list(parts) == ["head_down", "head_up", "head_own_down", "head_own_up"]
    weights = tf.nest.map_structure(np.array, base.init(0))
    for name, share in (("head", 0.75), ("head_own", 0.25)):
        down, up = (np.array(parts[f"{name}_{side}"]["kernel"]) for side in ("down", "up"))
        weights["head"]["kernel"] += share * down @ up
    np.testing.assert_allclose(outputs(model, parts), outputs(base, weights), rtol=1e-4)


def test_frozen_down_is_no_part():
    """FFA-LoRA trains `up` alone."""
    whole = lora(tiny_model(), ["head"], rank=2)
    model = lora(tiny_model(), ["head"], rank=2, frozen_down=True)
    assert model.layers == ("head_up",)
    up = drawn(model.init(0))
    parts = {"head_down": whole.init(0)["head_down"], **up}
    np.testing.assert_allclose(outputs(model, up), outputs(whole, parts), rtol=1e-6)


@pytest.mark.thorough
@together(
    ("shape", "sides"),
    [
        ((7, 5), (7, 5)),
        ((3, 3, 16, 8), (144, 8)),  # a convolution
        ((64, 4, 16), (64, 64)),  # queries of 4 heads
        ((4, 16, 64), (64, 64)),  # outputs of 4 heads
        ((3, 16, 8), (48, 8)),  # a convolution over time
        ((6, 1, 8), (6, 8)),
    ],
)
def test_kernels_are_matrices(shape, sides):
    def init(seed):
        return collections.OrderedDict(layer=collections.OrderedDict(kernel=tf.ones(shape)))

    base = tiny_model().evaluated_as("one", init, lambda w, x, **_: x)
    parts = lora(base, rank=1).init(0)
    assert [parts[f"layer_{side}"]["kernel"].shape for side in ("down", "up")] == [
        (sides[0], 1),
        (1, sides[1]),
    ]


@together(
    ("options", "message"),
    [
        ({"layers": ["dens1"]}, "Unknown layer of model 'mlp' 'dens1'. .*dense1"),
        ({"trained": ["top"]}, "Unknown layer of model 'mlp' 'top'"),
        ({"rank": 0}, "rank"),
        ({"own_share": 1.5}, "own_share"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        lora(tiny_model(), **options)


def normalized_network():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=IMAGE_SHAPE),
            tf.keras.layers.Dense(5, name="dense1"),
            tf.keras.layers.BatchNormalization(name="norm"),
            tf.keras.layers.Dense(3, name="head"),
        ]
    )


def test_biases_alone_are_trained():
    """BitFit."""
    base = tiny_model()
    model = lora(base, [], trained=["*/bias"])
    assert {name: list(layer) for name, layer in model.init(0).items()} == {
        "dense1": ["bias"],
        "head": ["bias"],
    }
    parts = drawn(model.init(0))
    weights = tf.nest.map_structure(np.array, base.init(0))
    for name in weights:
        weights[name]["bias"] = parts[name]["bias"]
    np.testing.assert_allclose(outputs(model, parts), outputs(base, weights), rtol=1e-6)
    assert model.features is None  # the kernel of the head is not among the parts
    assert lora(base, ["dense1"], trained=["head/*"]).features is not None
    assert lora(base, "dense1", trained="head").layers == ("dense1_down", "dense1_up", "head")


def test_batch_normalisation_is_trained_or_refused():
    base = models.from_keras(normalized_network, input_shape=IMAGE_SHAPE)
    with pytest.raises(ValueError, match="'norm' of model .* Add it to trained, or build it with"):
        lora(base, ["dense1"])
    model = lora(base, ["dense1"], trained=["norm", "head"])
    found, weights = model.training_pass(model.init(0), X, weight=tf.ones([4]), seed=[0, 0])
    _, expected = base.training_pass(base.init(0), X, weight=tf.ones([4]), seed=[0, 0])
    assert np.array_equal(weights["norm"]["moving_mean"], expected["norm"]["moving_mean"])
    assert not np.array_equal(weights["norm"]["moving_mean"], model.init(0)["norm"]["moving_mean"])


def test_transformer_ignores_padding_and_later_tokens():
    options = {"mean": None, "vocabulary": 50, "width": 8, "depth": 1, "heads": 2}
    ids = np.random.default_rng(0).integers(1, 50, (3, 6)).astype(np.int32)
    padded = np.where(np.arange(6) < 4, ids, 0).astype(np.int32)
    for causal in (False, True):
        each = {"causal": causal, "per_token": True, "task": "sequence"}
        model = models.build("transformer", (6,), 50, **each, **options)
        whole, changed = ids.copy(), ids.copy()
        changed[:, 4:] = 1 + changed[:, 4:] % 49
        first, second = (
            np.array(outputs(model, model.init(0), x))[:, :4] for x in (whole, changed)
        )
        assert np.allclose(first, second, atol=1e-6) == causal
    model = models.build("transformer", (6,), 5, **options)
    weights = model.init(0)
    alone = models.build("transformer", (4,), 5, **options)
    start = {**weights, "positions": {"vectors": weights["positions"]["vectors"][:4]}}
    shorter = outputs(alone, alone.starting_from(start).init(0), padded[:, :4])
    np.testing.assert_allclose(outputs(model, weights, padded), shorter, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="width 9 of a transformer must be a multiple of heads=2"):
        models.build("transformer", (6,), 5, **{**options, "width": 9})


@pytest.mark.parametrize("file", ["network.keras", "network.h5"])
@pytest.mark.parametrize("per_token", [False, True])
def test_transformer_is_saved_and_loaded(file, per_token, tmp_path):
    options = {"vocabulary": 50, "width": 8, "depth": 1, "heads": 2, "per_token": per_token}
    options["prompts"] = 2 if per_token else 0
    network = models.MODELS["transformer"]((6,), 5, **options)
    network.save(tmp_path / file)
    ids = np.random.default_rng(0).integers(0, 50, (3, 6)).astype(np.int32)
    loaded = tf.keras.models.load_model(tmp_path / file, compile=False)
    np.testing.assert_array_equal(loaded(ids), network(ids))


@pytest.mark.parametrize("task", ["classification", "sequence"])
def test_transformer_computes_in_bfloat16(task):
    ids = np.random.default_rng(0).integers(0, 50, (3, 6)).astype(np.int32)
    options = {"vocabulary": 50, "width": 8, "depth": 1, "heads": 2, "mean": None, "task": task}
    options["per_token"] = task == "sequence"
    exact, rounded = (
        models.build("transformer", (6,), 5, **options, compute_type=compute_type)
        for compute_type in ("float32", "bfloat16")
    )
    weights = exact.init(0)
    expected = np.array(outputs(exact, weights, ids))
    found = np.array(outputs(rounded, weights, ids))
    assert found.dtype == np.float32 and not np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, atol=0.05)


def gradient(model, parts, x=X):
    with tf.GradientTape() as tape:
        tape.watch(parts)
        loss = tf.reduce_sum(outputs(model, parts, x) ** 2)
    return tape.gradient(loss, parts)


def test_frozen_kernels_in_bfloat16_change_no_bit_where_layers_round_them():
    images, found = np.random.default_rng(0).uniform(0, 255, (4, 8, 8, 1)), []
    for compute_type in ("float32", "bfloat16"):
        base = models.build("cnn", (8, 8, 1), 3, compute_type=compute_type)
        for frozen_type in ("float32", "bfloat16"):
            model = lora(base, rank=2, frozen_type=frozen_type)
            parts = drawn(model.init(0))
            found.append(outputs(model, parts, images))
    exact, rounded, *mixed = map(np.array, found)
    assert np.array_equal(*mixed) and not np.array_equal(exact, rounded)
    np.testing.assert_allclose(exact, rounded, rtol=0.1, atol=0.1)


def test_small_files_change_no_bit(monkeypatch):
    """Compares gradients with weights in files and as constants."""
    found = []
    for least in (0, 1 << 40):
        monkeypatch.setattr(frozen, "LEAST_BYTES", least)
        model = lora(tiny_model(), rank=2)
        parts = drawn(model.init(0))

        found.append(tf.function(functools.partial(gradient, model))(parts))
    for one, other in zip(*map(tf.nest.flatten, found), strict=True):
        assert np.array_equal(one, other)


def test_prompts_are_tuned_before_a_pretrained_transformer(tmp_path):
    options = {"vocabulary": 50, "width": 8, "depth": 2, "heads": 2, "mean": None}
    ids = np.random.default_rng(0).integers(1, 50, (3, 6)).astype(np.int32)
    pretrained = models.MODELS["transformer"]((6,), 7, vocabulary=50, width=8, heads=2)
    pretrained.save(tmp_path / "network.keras")
    model = models.build(
        "transformer",
        (6,),
        3,
        prompts=4,
        start=str(tmp_path / "network.keras"),
        new_layers=["prompts", "head"],
        adapters={"layers": [], "trained": ["prompts", "head"]},
        **options,
    )
    assert model.layers == ("prompts", "head") and not model.starts_alike
    assert model.num_weights == 4 * 8 + 8 * 3 + 3
    parts = model.init(0)
    tokens = pretrained.get_layer("tokens").get_weights()[0]
    np.testing.assert_array_equal(model.base_weights(parts)["tokens"]["embeddings"], tokens)
    assert np.any(gradient(model, parts, ids)["prompts"]["vectors"])

    # Tokens see prompts and not padding; outputs are of tokens alone.
    padded = np.where(np.arange(6) < 4, ids, 0).astype(np.int32)
    per_token = models.build(
        "transformer", (6,), 50, prompts=4, causal=True, per_token=True, task="sequence", **options
    )
    weights = per_token.init(0)
    found = np.array(outputs(per_token, weights, padded))
    assert found.shape == (3, 6, 50)
    np.testing.assert_allclose(found[:, :4], outputs(per_token, weights, ids)[:, :4], atol=1e-6)
    weights["prompts"]["vectors"] += 1.0 * np.arange(8)
    assert not np.allclose(found[:, :4], outputs(per_token, weights, padded)[:, :4], atol=1e-3)
