#!/usr/bin/env bash
# Other programs read a run's output: TensorBoard its event files, Prometheus its metrics, Perfetto the timelines of
# eight ranks and of 64 simulated ones. Missing programs are skipped; tests/install-clients installs them.
#   clients_read_what_a_run_shows.sh SOURCE_FOLDER PATH_OF_trireme PATH_OF_test_observe
# Environment: TRIREME_TEST_PYTHON     an interpreter with tensorboard and perfetto (default: PYTHON, or python3)
#              TRACE_PROCESSOR         Perfetto's trace_processor_shell
#              TRIREME_EXPECT_CLIENTS  if set, only the trace processor may be missing
source "$(dirname "$0")/checks.sh"
test_observe=${3:?}
python=${TRIREME_TEST_PYTHON:-${PYTHON:-python3}} prometheus=''
trap '[[ $BASHPID != "$$" || -z $prometheus ]] || kill "$prometheus" 2>/dev/null; clean_up' EXIT
skipped() {
  [[ -z ${TRIREME_EXPECT_CLIENTS:-} ]] || fail "TRIREME_EXPECT_CLIENTS is set, but $1 is missing"
  echo "skipped: no $1"
}

make_text
cat >tiny.yaml <<'YAML'
run: {name: tiny, device: cpu, eval_every: 10}
model: {layers: 4, hidden: 16, heads: 2, vocab: 257, seq_len: 16}
data: {sources: [text], global_batch: 8, micro_batch: 1, tokenizer: bytes}
parallel: {tp: 2, pp: 2, dp: 2}
lr: {peak: 1e-2, warmup_steps: 2}
checkpoint: {every: 10, every_minutes: 0}
YAML
settings=("data.sources=[text]" run.sample_tokens=0 run.eval_batches=1 metrics.timeline=3:5 metrics.prometheus=127.0.0.1:0
  "metrics.prometheus_file=$folder/trireme.prom")

echo "clients read a run that continues meanwhile and is then stopped"
# Has no fixed end: it lasts as long as the clients read.
start seen 8 "${settings[@]}" run.steps=100000
until_true steps_done seen 12
port=$(sed -n 's|.*Prometheus: http://127.0.0.1:\([0-9]*\)/metrics.*|\1|p' seen.txt)
exec {slow}<>"/dev/tcp/127.0.0.1/$port" # a client that sends nothing does not block others
exec {visitor}<>"/dev/tcp/127.0.0.1/$port"
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&"$visitor"
page=$(tr -d '\r' <&"$visitor")
exec {visitor}>&- {slow}>&-
grep -q '^trireme_loss_nats [0-9]' <<<"$page" || fail "the metrics have no loss" "$page"
if command -v promtool >/dev/null; then
  said=$(sed '1,/^$/d' <<<"$page" | promtool check metrics 2>&1) || fail "promtool check metrics" "$said"
  [[ -z $said ]] || fail "promtool has advice" "$said"
else
  skipped promtool
fi
if command -v prometheus >/dev/null; then
  cat >scrape.yaml <<YAML
global: {scrape_interval: 1s}
scrape_configs: [{job_name: trireme, static_configs: [{targets: ["127.0.0.1:$port"]}]}]
YAML
  prometheus --config.file=scrape.yaml --storage.tsdb.path=prometheus --web.listen-address=127.0.0.1:0 \
    >prometheus.txt 2>&1 &
  prometheus=$!
  listens() {
    listens=$(sed -n 's/.*Listening on.* address=127\.0\.0\.1:\([1-9][0-9]*\).*/\1/p' prometheus.txt)
    [[ -n $listens ]]
  }
  until_true listens
  scraped() { promtool query instant "http://127.0.0.1:$listens" 'trireme_steps_total > 0' 2>/dev/null | grep -q '=>'; }
  until_true scraped
else
  skipped prometheus
fi
run 0 "$trireme" timeline seen --record 2
recorded() { [[ $(find seen/trace -name '*.piece' | wc -l) -ge 16 ]]; }
until_true recorded
kill -TERM "$(pid_of 0)"
end_of seen 75
grep -q '^trireme_checkpoints_total [1-9]' trireme.prom || fail "trireme.prom lacks the checkpoints" "$(cat trireme.prom)"

echo "the run continues from an older checkpoint, which repeats the steps in between"
last=$(find seen/checkpoints -maxdepth 1 -name 'step_*' | sort | tail -n 1)
rm -rf "$last"
before=$(find seen/checkpoints -maxdepth 1 -name 'step_*' | sort | tail -n 1)
before=$((10#${before##*step_}))
train 0 seen 8 "${settings[@]}" "run.steps=$((before + 15))"
# Steps that were lost beyond the new end are also hidden.
if "$python" -c 'import tensorboard' 2>/dev/null; then
  run 0 "$python" -W ignore "$source_dir/tests/mp/clients.py" tensorboard seen
  echo "$output" | tail -n 1
else
  skipped tensorboard
fi

echo "timelines: the steps of metrics.timeline, and those requested while the run trained"
run 0 "$trireme" timeline seen --steps 3:5 --output named.pftrace
has "steps 3 to 5 of 8 ranks on 1 host"
lacks "no flow"
lacks "before they are sent"
run 0 "$trireme" timeline seen --output requested.pftrace
has "of 8 ranks"
if "$python" -c 'from perfetto.protos.perfetto.trace import perfetto_trace_pb2' 2>/dev/null; then
  TRIREME_TEST_TRACE=$folder/simulated.pftrace run 0 "$test_observe" --gtest_filter='Timeline.every_receive_of_64_*'
  for trace in named requested simulated; do
    run 0 "$python" "$source_dir/tests/mp/clients.py" perfetto "$trace.pftrace"
    echo "$output"
  done
else
  skipped perfetto
fi
run 3 "$trireme" timeline seen --steps 100001
has "not recorded"

finish
