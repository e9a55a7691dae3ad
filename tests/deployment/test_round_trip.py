"""What is written is read back exactly. The same through vLLM's own parser: test_with_vllm.py."""

from hypothesis import given
from hypothesis import strategies as st

from optimizer.deployment.deployment import Deployment
from optimizer.deployment.vllm_command import command_arguments, read_command, write_command
from optimizer.deployment.vllm_yaml import read_yaml, write_yaml
from search_spaces.config import Config

CONFIGS = st.fixed_dictionaries(
    {
        "max_num_batched_tokens": st.integers(1024, 10**6),
        "max_num_seqs": st.integers(1, 1024),
        "watermark": st.floats(0, 0.999),
        "gpu_memory_utilization": st.floats(1e-9, 1.0),
        "kv_cache_memory_bytes": st.integers(1, 2**48),
        "enable_prefix_caching": st.booleans(),
        "attention_backend": st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
            lambda t: t != "None" and t.strip() and not t.startswith("-")
        ),
    }
)


@given(CONFIGS)
def test_values_come_back_exactly(values: dict[str, int | float | bool | str]) -> None:
    deployment = Deployment(model="org/m; rm -rf x", config=Config(values))
    again = read_yaml(write_yaml(deployment), "a.yaml")
    assert again.config == deployment.config
    assert again.model == deployment.model


@given(CONFIGS)
def test_values_come_back_exactly_from_a_command(values: dict[str, int | float | bool | str]) -> None:
    deployment = Deployment(model="org/m; rm -rf x", config=Config(values))
    again = read_command(write_command(deployment), "f")
    assert (again.config, again.model) == (deployment.config, deployment.model)
    assert command_arguments(deployment)[:2] == ["serve", "org/m; rm -rf x"]
