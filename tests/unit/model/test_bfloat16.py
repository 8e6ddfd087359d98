"""Products of bfloat16 numbers from compiled loops: operands by torch's rounding, products by float64."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssmpi.model import bfloat16, blas, brgemm, kernels, onednn_gemm, processor
from ssmpi.model.bfloat16 import EDGE, PANEL, TILE, up_to
from ssmpi.model.network import Inputs
from ssmpi.model.networks.zoo import network_of
from ssmpi.model.options import DCNv2Options, DeepFMOptions, ModelOptions, WideDeepOptions
from ssmpi.model.program import NARROWEST, Program
from ssmpi.model.replica import Replica

needs_kernels = pytest.mark.skipif(
    not brgemm.kernels("bf16"), reason="this processor has no bfloat16 instructions of x86"
)
SIZES = st.tuples(st.integers(1, 150), st.integers(1, 150), st.integers(1, 150))
FEW = settings(max_examples=40, deadline=None)
FILL = 0x4321


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def rounded(values):
    """uint16, by torch."""
    return torch.from_numpy(np.ascontiguousarray(values)).bfloat16().view(torch.uint16).numpy()


def exact(values):
    """The rounded values as float64."""
    return (rounded(values).astype(np.uint32) << 16).view(np.float32).astype(float)


def unpacked(panels, height, columns):
    """The matrix (height, columns) that lies in panels."""
    wide = up_to(columns, PANEL)
    panels = panels[: height * wide].reshape(wide // PANEL, height // 2, PANEL, 2)
    return panels.transpose(1, 3, 0, 2).reshape(height, wide)[:, :columns]


@FEW
@given(SIZES)
def test_operands_are_rounded_as_torch_does_and_filled_with_zeros(sizes):
    n, k, more = sizes
    values, out = normal(n, k), np.full(2 * (n + 64) * (k + 64 + more), FILL, np.uint16)
    lines = np.full(EDGE * up_to(k, EDGE), FILL, np.uint16)
    bfloat16.rows(values.ravel(), n, k, k + more, out)
    found = out[: n * (k + more)].reshape(n, -1)
    np.testing.assert_array_equal(found[:, :k], rounded(values))
    assert not found[:, k:].any()

    height = up_to(n, EDGE)
    bfloat16.panels(values.ravel(), n, k, height, out)
    found = unpacked(out, height, k)
    np.testing.assert_array_equal(found[:n], rounded(values))
    assert not found[n:].any()

    bfloat16.transposed(values.ravel(), n, k, height, lines, out)
    found = out[: up_to(k, TILE) * height].reshape(-1, height)[:k]
    np.testing.assert_array_equal(found[:, :n], rounded(values).T)
    assert not found[:, n:].any()

    height = up_to(k, EDGE)
    bfloat16.panels_of_transposed(values.ravel(), n, k, lines, out)
    found = unpacked(out, height, n)
    np.testing.assert_array_equal(found[:k], rounded(values).T)
    assert not found[k:].any()


def test_what_has_no_nearest_number_is_kept():
    """The largest float32 become infinite; NaN of any payload stays one; of two equally near numbers the even one."""
    bits = np.array([0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x3F808000, 0x3F818000, 1])
    values, out = bits.astype(np.uint32).view(np.float32), np.empty(9, np.uint16)
    bfloat16.rows(values, 1, 9, 9, out)
    found = (out.astype(np.uint32) << 16).view(np.float32)
    assert list(found[:3]) == [np.inf, -np.inf, np.inf]
    assert np.isnan(found[3:6]).all()
    assert [hex(value) for value in out[6:]] == ["0x3f80", "0x3f82", "0x0"]


def all_products(n, m, k, held=None, half=True, laid_out=False, activation=None):
    """Outputs (n, m), gradients by weight (m, k) and by values (n, k), each added to ``held`` if that is given."""
    values, weight, by_out, bias = normal(n, k), normal(m, k, seed=1), normal(n, m, seed=2), normal(m, seed=3)
    other, fresh = (not half, 7, 5), held is None
    operands = onednn_gemm.operands(brgemm.kernels("bf16"), [other, (half, m, k)], n)
    operands.buffer[:], operands.copies[:] = FILL, FILL
    place, x, matrix, g = onednn_gemm.copies_of(*other), values.ravel(), weight.ravel(), by_out.ravel()
    out, by_weight, by_values = (np.full(size, 0 if fresh else held, np.float32) for size in (n * m, m * k, n * k))
    shift, relu = bias if activation else bias[:0], activation == "relu"
    if half:
        onednn_gemm.refresh_half(operands, place, matrix, m, k, True)
        onednn_gemm.outputs_half(operands, place, x, out, n, m, k)
        if activation:
            kernels.add_bias(out, bias, n, m, relu)
        onednn_gemm.by_weight_half(operands, g, x, by_weight, n, m, k, fresh)
        onednn_gemm.by_values_half(operands, place, g, by_values, n, m, k, fresh)
    else:
        onednn_gemm.refresh(operands, place, matrix, m, k)
        onednn_gemm.outputs(operands, laid_out, place, x, matrix, shift, relu, out, n, m, k)
        onednn_gemm.by_weight(operands, g, x, by_weight, n, m, k, fresh)
        onednn_gemm.by_values(operands, g, matrix, by_values, n, m, k, fresh)
    brgemm.release(operands.kernels.release)
    x, w, g = (exact(array) if half else array.astype(float) for array in (values, weight, by_out))
    outputs = x @ w.T + (bias if activation else 0.0)
    outputs = np.maximum(outputs, 0.0) if relu else outputs
    return (
        (out.reshape(n, m), by_weight.reshape(m, k), by_values.reshape(n, k)),
        (outputs, g.T @ x + (held or 0.0), g @ w + (held or 0.0)),
    )


ACTIVATIONS = st.sampled_from([None, "bias", "relu"])


@needs_kernels
@FEW
@given(SIZES, st.sampled_from([None, 3.0]), ACTIVATIONS)
def test_products_are_those_of_the_rounded_numbers(sizes, held, activation):
    """Up to float32's rounding of sums."""
    for found, expected in zip(*all_products(*sizes, held, activation=activation), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.skipif(not processor.is_amd_with_avx512(), reason="float32 products by these kernels are for AMD's")
@FEW
@given(SIZES, st.sampled_from([None, 3.0]), st.booleans(), ACTIVATIONS)
def test_products_of_float32(sizes, held, laid_out, activation):
    """With the weights laid out before, or part by part."""
    for found, expected in zip(*all_products(*sizes, held, False, laid_out, activation), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5)


@needs_kernels
@pytest.mark.parametrize("sizes", [(512, 512, 367), (200, 1024, 48), (1, 64, 512), (64, 64, 3456)])
def test_products_of_layers(sizes):
    for found, expected in zip(*all_products(*sizes), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.skipif(not processor.is_amd_with_avx512(), reason="float32 products by these kernels are for AMD's")
@pytest.mark.parametrize("sizes", [(512, 90, 624), (70, 7000, 150), (130, 432, 432), (90, 700, 432), (300, 600, 512)])
@pytest.mark.parametrize("held", [None, 3.0])
def test_float32_products_of_several_groups_of_panels(sizes, held):
    """Values and weights longer than what lies in cache together; blocks of rows that are not whole."""
    for found, expected in zip(*all_products(*sizes, held, half=False), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)


@FEW
@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 70))
def test_panels_of_words(n, k, more):
    values, out = normal(n, k + more), np.full(n * up_to(k, PANEL), FILL, np.float32)
    bfloat16.panels_of_words(values.ravel(), n, k, k + more, out)
    found = out.reshape(-1, n, PANEL).transpose(1, 0, 2).reshape(n, -1)
    np.testing.assert_array_equal(found[:, :k], values[:, :k])
    assert (found[:, k:] == FILL).all()


def test_narrow_layers_stay_float32():
    """A fixed rule, whatever the processor."""
    program = Program(network_of(ModelOptions(), Inputs(13, 26, 16)), "bf16")
    assert [layer[1:] for layer in program.layers if layer[0]] == [(256, 512), (64, 256), (512, 367), (256, 512)]
    assert [layer[1:] for layer in program.layers if not layer[0]] == [(512, 13), (16, 64), (1, 256)]
    assert NARROWEST == 32


def step_of(options, network, batch):
    model, (dense, rows, labels) = Replica(network, options.precision, seed=3).thread_model(), batch
    logits, by_rows = model.forward_backward(dense, rows, labels)
    return logits.copy(), by_rows.copy(), model.gradients


@needs_kernels
@pytest.mark.parametrize("name", ["dlrm", "dcn_v2", "deepfm", "logistic", "wide_deep"])
@pytest.mark.parametrize("size", [1, 2, 33, 600])
def test_the_compiled_step_is_torchs_step_of_the_same_products(name, size, monkeypatch):
    """Without ReLU, whose zeros move by rounding: numbers between layers are rounded at other places, no more."""
    options = ModelOptions(
        name=name, precision="bf16", bottom=(64, 16), top=(1,), dcn_v2=DCNv2Options(2, 40), deepfm=DeepFMOptions(()),
        wide_deep=WideDeepOptions(()),
    )  # fmt: skip
    network = network_of(options, Inputs(40, 26, 16))
    batch = normal(size, 40), normal(size, 26, network.rows.width), (normal(size) < 0).astype(np.float32)
    compiled = step_of(options, network, batch)
    monkeypatch.setattr(brgemm, "kernels", lambda precision: None)
    by_torch = step_of(options, network, batch)
    for ours, theirs in zip(compiled, by_torch, strict=True):
        least = 0 if any(half for half, *_ in Program(network, "bf16").layers) else -1
        assert least < np.linalg.norm(ours - theirs) < 0.03 * np.linalg.norm(theirs)


@needs_kernels
def test_a_batch_of_several_pieces_has_the_gradients_of_its_parts(monkeypatch):
    options = ModelOptions(precision="bf16", bottom=(64, 16), top=(48, 1))
    network = network_of(options, Inputs(40, 26, 16))
    batch = normal(1025, 40), normal(1025, 26, 16), (normal(1025) < 0).astype(np.float32)
    whole = step_of(options, network, batch)
    parts = [step_of(options, network, [array[k::2].copy() for array in batch]) for k in range(2)]
    for part, logits in enumerate(parts):
        np.testing.assert_allclose(whole[0][part::2], logits[0], rtol=1e-5, atol=1e-5)  # each example's own
    together = (parts[0][2] * 513 + parts[1][2] * 512) / 1025
    np.testing.assert_allclose(whole[2], together, rtol=0.05, atol=2e-4)


def test_the_rule_which_step_is_taken(monkeypatch, tmp_path):
    """By processor, system and library, never by timing."""
    monkeypatch.setattr(processor, "has_bfloat16", lambda: True)
    monkeypatch.setattr(processor, "is_amd_with_avx512", lambda: True)
    monkeypatch.setattr(brgemm.platform, "machine", lambda: "aarch64")
    assert brgemm.kernels("bf16") is None
    monkeypatch.setattr(brgemm.platform, "machine", lambda: "x86_64")
    assert all(brgemm.kernels("bf16"))
    assert [bool(address) for address in brgemm.kernels("fp32")] == [True, False, False]
    for name in brgemm.LIMITS:
        monkeypatch.setenv(name, "AVX2")
        assert brgemm.kernels("bf16") is brgemm.kernels("fp32") is None
        monkeypatch.delenv(name)
    monkeypatch.setattr(processor, "is_amd_with_avx512", lambda: False)
    assert brgemm.kernels("fp32") is None
    assert [bool(address) for address in brgemm.kernels("bf16")] == [False, True, True]
    monkeypatch.setattr(blas, "LIBRARY", tmp_path / "none")
    assert brgemm.kernels("bf16") is None
    monkeypatch.setattr(processor, "has_bfloat16", lambda: False)
    assert brgemm.kernels("bf16") is None


def test_who_made_the_processor_is_what_linux_says(tmp_path):
    path = tmp_path / "cpuinfo"
    for vendor, flags, expected in (
        ("AuthenticAMD", "fma avx512f", True), ("AuthenticAMD", "fma avx2", False), ("GenuineIntel", "avx512f", False),
    ):  # fmt: skip
        path.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n")
        assert processor.is_amd_with_avx512(path) == expected
    assert not processor.is_amd_with_avx512(tmp_path / "none")


@needs_kernels
def test_a_step_of_bfloat16_needs_no_torch():
    code = (
        "import sys, numpy as np\n"
        "from ssmpi.model.network import Inputs\n"
        "from ssmpi.model.options import ModelOptions\n"
        "from ssmpi.model.replica import Replica\n"
        "from ssmpi.model.networks.zoo import network_of\n"
        "model = Replica(network_of(ModelOptions(), Inputs(13, 26, 16)), 'bf16', 1).thread_model()\n"
        "logits, _ = model.forward_backward(*(np.ones(s, np.float32) for s in ((3, 13), (3, 26, 16), (3,))))\n"
        "assert np.isfinite(logits).all() and model.gradients.any()\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, env=dict(os.environ))
    assert done.returncode == 0
