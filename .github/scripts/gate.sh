#!/usr/bin/env bash
# Judge a commit: is it still right, is it still fast? action.yml says what the variables mean.
set -euo pipefail

python=${PYTHON:-python}
target=${TARGET:-auto}
against=${AGAINST:-}
folder=${REPORTS:-ascend-reports}
mkdir -p "$folder"

echo "::group::pytest-ascend doctor"
"$python" -m pytest_ascend.cli doctor || true # what is wrong stops the run below, where it matters to it
echo "::endgroup::"

emulated=$("$python" - "$target" <<'END'
import sys
from pytest_ascend.targets import TargetUnavailable, resolve

try:
    print("true" if resolve(sys.argv[1]).describe().get("emulated") else "false")
except (TargetUnavailable, ValueError) as error:
    sys.exit(f"::error title=No target::{error}")
END
)
echo "emulated=$emulated" >> "${GITHUB_OUTPUT:-/dev/null}"

if [[ $emulated == true && $target != emulated* ]]; then
    said="there is no NPU on this runner: the EMULATED one stood in, which shows wrong code, not the card's own faults; times are those of this CPU"
    if [[ ${REQUIRE_NPU:-false} == true ]]; then
        echo "::error title=No NPU::$said, and require-npu forbids that"
        exit 1
    fi
    echo "::warning title=Emulated NPU::$said"
    printf '> [!WARNING]\n> **Not judged on a card:** %s.\n\n' "$said" >> "${GITHUB_STEP_SUMMARY:-/dev/null}"
fi

options=("--ascend-compare=$target" "--ascend-json=$folder/results.json" "--junitxml=$folder/junit.xml")
"$python" -c 'import jinja2' 2> /dev/null && options+=("--ascend-html=$folder/report.html")
case $against in
none) ;; # right alone, no times
baselines) options+=("--ascend-perf") ;;
"" | 0000000000000000000000000000000000000000)
    echo "::notice title=No timing::there is no commit to time against" ;;
*) options+=("--ascend-ab=$against") ;;
esac
[[ -z ${FAIL:-} ]] || options+=("--ascend-fail=$FAIL")
[[ ${STRICT:-false} != true ]] || options+=("--ascend-strict")

# One argument a line, so that a path or a pattern may hold spaces.
mapfile -t more < <(printf '%s' "${ARGUMENTS:-}" | sed '/^[[:space:]]*$/d')
"$python" -m pytest "${options[@]}" "${more[@]}"
