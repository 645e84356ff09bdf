"""Models of the cookbook: each learns, says what it did, and does what its page says."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from example_programs import load_example

import weft as wf

pytest.importorskip("sklearn")
REPORT = (
    r"first \d+\.\d\d s, then \d+ us a step\n"
    r"\d+ kernel calls.*; compiled in \d+\.\d\d s; cpu, .*threads?\n"
)


@pytest.fixture(autouse=True)
def float32_and_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No program computes in float64 by accident, or leaves files where it is started."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", wf.Float64Warning)
        yield
    assert [path for path in tmp_path.iterdir() if path.stem != "asked"] == []


# ------------------------------------------------------------------------------------ transformer
transformer = load_example("transformer")
SMALL = ["--steps", "60", "--batch", "8", "--context", "16", "--width", "32", "--layers", "1"]


def test_transformer_sees_only_what_came_before() -> None:
    p = transformer.parameters(10, 8, 16, 2, seed=0)
    ids = np.random.default_rng(0).integers(0, 10, (3, 8)).astype(np.int32)
    other = ids.copy()
    other[:, 5] = (other[:, 5] + 1) % 10
    one, two = (transformer.logits(p, x, heads=4).numpy() for x in (ids, other))
    np.testing.assert_array_equal(one[:, :5], two[:, :5])
    assert np.all(np.any(one[:, 5:] != two[:, 5:], axis=2))


@pytest.mark.slow
def test_transformer_learns_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    whole = transformer.main(SMALL)
    said = capsys.readouterr().out
    assert re.search("steps 1 to 60: " + REPORT, said)
    assert f"held-out loss: {whole.held_out:.3f} bits per character\n\n{whole.sample}" in said
    assert len(whole.sample) == transformer.SAMPLE
    assert np.mean(whole.losses[-10:]) < np.mean(whole.losses[:5]) - 1
    assert whole.held_out < whole.losses[0] - 1
    first = transformer.main([*SMALL, "--checkpoint", "asked", "--until", "25"])
    second = transformer.main([*SMALL, "--checkpoint", "asked"])
    assert (first.first, second.first) == (0, 25)
    assert first.losses + second.losses == whole.losses  # bit by bit
    assert (second.held_out, second.sample) == (whole.held_out, whole.sample)
    third = transformer.main([*SMALL, "--checkpoint", "asked"])
    assert (third.first, third.losses, third.held_out) == (60, [], whole.held_out)


@pytest.mark.slow
def test_transformer_as_it_is() -> None:
    result = transformer.main([])
    assert result.held_out < 2.5  # a Huffman code of single characters takes twice as many bits
    assert len(set(result.sample)) > 20


# ------------------------------------------------------------------------------------------- LSTM
lstm = load_example("lstm")


def test_lstm_cell_by_hand() -> None:
    """Against NumPy's float64, one gate after the other."""
    rng = np.random.default_rng(0)
    p = lstm.parameters(3, 5, seed=0)
    w = {name: variable.numpy().astype(np.float64) for name, variable in p.items()}
    assert w["bias"].tolist() == [0] * 5 + [1] * 5 + [0] * 10
    x = rng.normal(size=(4, 6, 3)).astype(np.float32)
    h = c = np.zeros((4, 5))
    for t in range(6):
        gates = x[:, t] @ w["in"] + h @ w["state"] + w["bias"]
        i, f, o = (1 / (1 + np.exp(-gates[:, k : k + 5])) for k in (0, 5, 10))
        c = f * c + i * np.tanh(gates[:, 15:])
        h = o * np.tanh(c)
    expected = h @ w["out"] + w["out_bias"]
    np.testing.assert_allclose(lstm.logits(p, x).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_lstm_learns(capsys: pytest.CaptureFixture[str]) -> None:
    result = lstm.main(["--steps", "250"])
    assert result.accuracy > 0.85
    assert result.losses[0] == pytest.approx(np.log(10), rel=0.1)
    assert np.mean(result.losses[-20:]) < 0.4
    said = capsys.readouterr().out
    assert re.search("250 steps: " + REPORT, said)
    assert f"held-out accuracy {result.accuracy:.2%}" in said


@pytest.mark.slow
def test_lstm_as_it_is() -> None:
    result = lstm.main([])
    assert result.accuracy > 0.95
    assert lstm.main([]) == result  # the same seed, the same bits
    assert lstm.main(["--pixels", "1", "--steps", "600", "--units", "32"]).accuracy > 0.4


# ------------------------------------------------------------------------------------ convolutions
convnet = load_example("convnet")


def test_batch_norm_moves_its_statistics() -> None:
    rng = np.random.default_rng(0)
    layer = convnet.parameters(4, seed=0)["layers"][0]
    x = rng.normal(3, 2, size=(5, 6, 6, 4)).astype(np.float32)
    normal = convnet.batch_norm(layer, x, training=True).numpy()
    np.testing.assert_allclose(normal.mean(axis=(0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(normal.std(axis=(0, 1, 2)), 1, atol=1e-3)
    mean, variance = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
    np.testing.assert_allclose(layer["mean"].numpy(), 0.05 * mean, rtol=1e-4)
    np.testing.assert_allclose(layer["variance"].numpy(), 0.95 + 0.05 * variance, rtol=1e-4)
    before = layer["mean"].numpy().copy()
    after = convnet.batch_norm(layer, x, training=False).numpy()
    assert not np.allclose(after, normal, atol=0.1)
    np.testing.assert_array_equal(layer["mean"].numpy(), before)


def test_convnet_learns(capsys: pytest.CaptureFixture[str]) -> None:
    result = convnet.main(["--steps", "120", "--channels", "8"])
    assert result.accuracy > 0.85
    assert np.mean(result.losses[-10:]) < np.mean(result.losses[:5]) / 3
    said = capsys.readouterr().out
    assert re.search("120 steps: " + REPORT, said)
    assert f"held-out accuracy {result.accuracy:.2%}" in said


@pytest.mark.slow
def test_convnet_as_it_is() -> None:
    result = convnet.main([])
    assert result.accuracy > 0.97
    assert convnet.main([]) == result


# --------------------------------------------------------------------------------------------- VAE
vae = load_example("vae")


def test_vae_bound_by_hand() -> None:
    """KL divergence and cross-entropy in float64, from the codes that were drawn."""
    p = vae.parameters(16, 3, seed=0)
    images = vae.load_digits()[1][:7]
    key = wf.random.key(5)
    mean, log_variance = (x.numpy().astype(np.float64) for x in vae.encode(p, images))
    noise = wf.random.normal(key, (7, 3)).numpy()
    codes = (mean + np.exp(log_variance / 2) * noise).astype(np.float32)
    black = 1 / (1 + np.exp(-vae.decode(p, codes).numpy().astype(np.float64)))
    likelihood = np.sum(images * np.log(black) + (1 - images) * np.log(1 - black), axis=1)
    variance = np.exp(log_variance)
    divergence = np.sum((mean**2 + variance - 1 - log_variance) / 2, axis=1)
    elbo, kl = vae.bound(p, images, key)
    np.testing.assert_allclose(kl.numpy(), divergence, rtol=1e-4)
    np.testing.assert_allclose(elbo.numpy(), likelihood - divergence, rtol=1e-4)


def test_vae_learns(capsys: pytest.CaptureFixture[str]) -> None:
    result = vae.main(["--steps", "1200", "--units", "64", "--picture", "asked.png"])
    assert np.mean(result.elbos[-20:]) > result.elbos[0] + 20
    assert result.elbo > result.independent + 1
    assert 0 < result.divergence < 10
    assert -30 < result.independent < -25
    assert Path("asked.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert re.search("1200 steps: " + REPORT, said)
    assert f"held-out ELBO {result.elbo:.2f} nats an image" in said
    assert "picture: asked.png" in said


@pytest.mark.slow
def test_vae_as_it_is() -> None:
    result = vae.main([])
    assert result.elbo > -25.5
    assert vae.main([]) == result
