"""Azure LLM inference traces (Azure/AzurePublicDataset): TIMESTAMP,ContextTokens,GeneratedTokens.

2023: dates without a zone, seven decimals, CRLF, no line end after the last row. 2024: `+00:00`, six decimals.
"""

from __future__ import annotations

from pathlib import Path

from optimizer.workload.delimited import read_delimited, split_header
from optimizer.workload.reading import Head, Reading, ReadOptions

_COLUMNS = {"timestamp", "contexttokens", "generatedtokens"}


class AzureReader:
    name = "azure"
    looks_like = "Azure LLM inference CSV (TIMESTAMP,ContextTokens,GeneratedTokens)"

    def sniff(self, head: Head, path: Path) -> float:
        return 1.0 if {n.lower() for n in split_header(head.lines[0])[1]} >= _COLUMNS else 0.0

    def read(self, path: Path, options: ReadOptions) -> Reading:
        return read_delimited(path, options, self.name)
