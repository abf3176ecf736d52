#!/bin/sh
# The main job with shipped presets: presets, plan, explain, flops, import, audit, results, score; then the loop on this
# machine: probe, plan, sweep, learn, plan again; and a report of each. Everything is written to demo/.
set -e
run() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}
cd "$(dirname "$0")/.."
rm -rf demo && mkdir demo
TRIMARAN_LEDGER=demo/trimaran.sqlite
CUDA_VISIBLE_DEVICES= # four processes on the CPU, so that it is the same with any GPU or none
export TRIMARAN_LEDGER CUDA_VISIBLE_DEVICES

run trimaran presets
run trimaran plan bloom-176b --on jean-zay-a100-80gb --nodes 48 --gbs 2048 --trainer megatron-deepspeed-2022
run trimaran explain examples/jobs/bloom-176b.yaml
run trimaran flops examples/jobs/bloom-176b.yaml --seconds 104.5 --printed 150.05
run trimaran import --published examples/notes/*.md
run trimaran audit --published --fix
run trimaran audit examples/notes/*.md --fix
run trimaran results size=181B status=ok --limit 12
run trimaran results size=181B status=ok --by tp,pp,mbs
run trimaran score --published
run trimaran results size=181B status=ok -o demo/results.md --markdown
run python benchmarks/loop.py --demo --ranks 4 --folder demo/loop
run trimaran report --published -o demo/published.html
run trimaran report --sweep demo/loop/sweeps/training --ledger demo/loop/training.sqlite -o demo/report.html
printf '\n\033[1mThe loop works on this machine.\033[0m\n'
cat demo/loop/summary.txt
cat <<'END'

Look at
  demo/report.html        what was measured on this machine, with predictions
  demo/published.html     published tuning campaigns, with predictions
  demo/trimaran.sqlite    the ledger with the published rows; demo/loop/training.sqlite the one of this machine
Next
  . .venv/bin/activate
  trimaran plan llama3-70b --on dgx-h100 --nodes 8 --gbs 512      # a model and a cluster of your own: docs/jobs.md
  trimaran sweep layouts --budget 12                              # more trials here; docs/tutorial.md trains on the best
END
