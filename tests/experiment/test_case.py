"""Cases: what parameters mean, their canonical form, and refusals in one line."""

import pickle
from typing import Any

import numpy as np
import pytest

from cdnasim.errors import InputError
from cdnasim.experiment.case import GEMM_KEYS, check_case, parse_params, run_case

SMALL: dict[str, Any] = {"m": 1024, "n": 512, "k": 256}


def test_pairs_become_a_mapping() -> None:
    pairs = ["m=8192", "order=xcd:w=8,c=64"]  # a value may hold further equals signs
    assert parse_params(pairs) == {"m": "8192", "order": "xcd:w=8,c=64"}


@pytest.mark.parametrize("pair", ["m", "=8", "m=", "", "="])
def test_what_is_not_a_pair_is_refused(pair: str) -> None:
    with pytest.raises(InputError, match="must read key=value, such as m=8192"):
        parse_params(["k=64", pair])


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="parameter 'm' is given twice"):
        parse_params(["m=1", "m=1"])


def test_texts_and_numbers_are_the_same_case() -> None:
    texts = {key: str(value) for key, value in SMALL.items()}
    assert check_case("mi355x", "gemm", SMALL) == check_case("mi355x", "gemm", texts)


def test_parameters_are_completed() -> None:
    case = check_case("mi355x", "gemm", SMALL)
    assert case.params == {
        "m": 1024,
        "n": 512,
        "k": 256,
        "dtype": "bf16",
        "tile": "256x256x64",
        "schedule": "pingpong8",
        "order": "row-major",
        "registers": "pinned",
        "caches": "warm",
    }
    assert list(case.params) == list(GEMM_KEYS)
    assert case.warm and case.gemm.grid == (4, 2)
    assert check_case("h200", "gemm", SMALL).params["schedule"] == "pipelined:s=4"


def test_an_order_is_put_into_its_canonical_form() -> None:
    case = check_case("mi355x", "gemm", {**SMALL, "order": "xcd:c=2,w=3"})
    assert case.params["order"] == "xcd:w=3,c=2"


def test_an_order_may_be_a_python_callable() -> None:
    def backwards(ids: np.ndarray, rows: int, cols: int, xcds: int) -> np.ndarray:
        return rows * cols - 1 - ids

    case = check_case("mi355x", "gemm", {**SMALL, "order": backwards})
    assert case.launch().blocks[0].tolist() == [3, 1]
    assert "backwards" in case.params["order"]
    assert case.run().params == case.params


def test_a_case_survives_the_way_to_a_worker_process() -> None:
    case = check_case("h200", "gemm", {**SMALL, "tile": "128x128x64", "order": "window:w=2"})
    assert pickle.loads(pickle.dumps(case)) == case


def test_running_a_case_gives_a_result_of_plain_numbers() -> None:
    result = run_case("mi355x", "gemm", {**SMALL, "caches": "cold"}, seed=5)
    summary = result.summary()
    assert summary["machine"] == "mi355x" and summary["params"]["caches"] == "cold"
    for key, value in summary.items():
        assert type(value) in (str, int, float, dict), key
    again = check_case("mi355x", "gemm", {**SMALL, "caches": "cold"}).run(5)
    assert again.cycles == result.cycles


def test_cold_and_warm_differ_where_they_must() -> None:
    warm = run_case("mi355x", "gemm", SMALL)
    cold = run_case("mi355x", "gemm", {**SMALL, "caches": "cold"})
    assert warm.traffic.hbm_read_bytes == 0
    assert cold.traffic.hbm_read_bytes == (1024 + 512) * 256 * 2


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"m": None}, "m=None must be a whole number from 1 to 16777216"),
        ({"m": 0}, "m=0 must be a whole number from 1 to 16777216"),
        ({"m": -256}, "m=-256 must be a whole number"),
        ({"m": 256.0}, "m=256.0 must be a whole number"),
        ({"m": True}, "m=True must be a whole number"),
        ({"k": 2**24 + 64}, f"k={2**24 + 64} must be a whole number"),
        ({"n": 257}, "n=257 is not a multiple of 256 (tile 256x256x64)"),
        ({"tile": "256x256x96"}, "k=256 is not a multiple of 96 (tile 256x256x96)"),
        ({"tile": "256x256"}, "tile=256x256 must read <rows>x<columns>x<depth>"),
        ({"tile": "8x256x64"}, "each a multiple of 16 up to 1024"),
        ({"tile": "2048x256x64"}, "each a multiple of 16 up to 1024"),
        ({"dtype": "fp64"}, "dtype=fp64 is unknown; allowed: bf16, fp16, fp8"),
        ({"caches": "hot"}, "caches=hot is unknown; allowed: warm, cold"),
        ({"order": "spiral"}, "unknown order 'spiral'; allowed: row-major"),
        ({"split": 2}, "gemm: unknown parameter 'split'; allowed: m, n, k, dtype, tile"),
    ],
)
def test_malformed_parameters_are_refused(params: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        check_case("mi355x", "gemm", {**SMALL, **params})
    assert reason in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_unknown_kernels_and_machines_are_refused() -> None:
    with pytest.raises(InputError, match="kernel 'conv' is unknown; allowed: gemm"):
        check_case("mi355x", "conv", SMALL)
    with pytest.raises(InputError, match="machine 'mi1' is unknown; allowed: h200"):
        check_case("mi1", "gemm", SMALL)


@pytest.mark.parametrize("key", ["m", "n", "k"])
def test_sizes_are_needed(key: str) -> None:
    with pytest.raises(InputError, match=f"gemm: parameter '{key}' is missing; needed: m, n, k"):
        check_case("mi355x", "gemm", {k: v for k, v in SMALL.items() if k != key})
