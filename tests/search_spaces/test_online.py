import pytest

from search_spaces.known_models import find_model
from search_spaces.online import quantized_on_load

LLAMA = find_model("Llama-3.1-8B")


def test_fp8_on_load_weighs_what_the_fp8_checkpoint_weighs() -> None:
    loaded = quantized_on_load(LLAMA, "fp8")
    assert loaded.weight_bytes(1) == pytest.approx(find_model("Llama-3.1-8B-FP8").weight_bytes(1), rel=0.01)
    assert loaded.weight_bytes(1) < 0.62 * LLAMA.weight_bytes(1)  # embeddings and head stay at 16 bits
    assert any("fp8" in note for note in loaded.notes)


def test_nothing_changes_without_a_method_or_for_a_quantised_checkpoint() -> None:
    assert quantized_on_load(LLAMA, None) is LLAMA
    small = find_model("Llama-3.1-8B-Instruct-AWQ")
    assert quantized_on_load(small, "awq") is small


@pytest.mark.parametrize("method", ["awq", "gptq", "fp9", ""])
def test_a_method_that_needs_its_own_checkpoint_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match="give the quantised checkpoint as the model"):
        quantized_on_load(LLAMA, method)
