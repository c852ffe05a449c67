#!/bin/bash
# Style, types and the direction of imports.
set -euo pipefail
bin=.venv/bin
echo "lint: ruff"
"$bin/ruff" check operator trainer tests bench
"$bin/ruff" format --check operator trainer tests bench
echo "lint: mypy"
"$bin/mypy"
echo "lint: import-linter"
"$bin/lint-imports" --no-logo 2>/dev/null || "$bin/lint-imports"
