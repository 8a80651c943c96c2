#!/usr/bin/env bash
# The long tests, which are not part of CI: `make soak` runs all, `make soak-clang` and so on run one.
#
#   soak.sh clang      a second compiler: all of the CPU backend built with clang++, warnings are errors, thread-safety
#                      annotations (io/base/mutex.h) are checked; unit tests, and the tests of several ranks that read
#                      TRIREME_ALL_CASES, with all of their cases
#   soak.sh address    unit tests, and a training of four ranks, under AddressSanitizer and UndefinedBehaviorSanitizer
#   soak.sh thread     unit tests under ThreadSanitizer
#   soak.sh crash      ranks of the executable killed at 500 moments of a save, and 200 storage calls that fail or take long
#   soak.sh hang       ranks of the executable that hang at 200 moments, each named and ended; the quick start for 10,000
#                      steps, suspended for a minute, without a false alarm
#   soak.sh storage    storage stalls each file that a run writes, for 5, 30 and 120 s: no rank or node is blamed, and the
#                      losses are the same
#   soak.sh heal       300 faults of supervised runs, each healed, and 300 with checkpoints in memory every step or every
#                      three; a link that flaps between network namespaces; and one fault of each kind under Slurm
#   soak.sh fleet      the driver with the agents of 1,536 nodes: figures, and less than a tenth of a core
#   soak.sh doctor     `trireme doctor` passes this machine 50 times in a row, and names faults that take minutes to detect
#   soak.sh slow       each rank of eight in turn is 10 % slower than its peers, 3 times: it is named within 3 windows,
#                      and no other rank is. Needs an idle machine
#   soak.sh bubble     bubbles of pipelines with injected delays are within 10 % of the simulator's. Needs an idle
#                      machine
#   soak.sh predict    calibrated on smaller variants, the simulator predicts the quick start's step within 10 %. Needs an idle
#                      machine
#   soak.sh cores      parity, FP8 and golden tests, with all of their cases and with OpenBLAS' kernels for each processor
#                      that this one can stand in for: Sandybridge, Haswell, Zen, SkylakeX, SapphireRapids
#   soak.sh fresh      a fresh Debian 12 and Ubuntu 24.04, by debootstrap from DEBIAN_MIRROR and UBUNTU_MIRROR: make run,
#                      make install, make uninstall
#
# KILLS, ERRORS, SEED   of crash: the counts, and the seed of the random choice (default: the day; it is printed)
# CASES, STEPS, SEED    of hang: the same; CASES, SEED and AT_ONCE (concurrent runs, default 2) of heal
# STALLS, SEED          of storage: the seconds of each stall
# AGENTS, TIMES         the counts of fleet; of doctor and predict
# JOBS                  number of compilers and tests that run concurrently
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kind=${1:?soak.sh clang|address|thread|crash|hang|storage|heal|fleet|doctor|slow|bubble|predict|cores|fresh}
jobs=${JOBS:-$(nproc)}
verdict() {
  local status=$?
  if ((status == 0)); then echo "soak $kind: PASSED"; else echo "soak $kind: FAILED with exit status $status"; fi
}
trap verdict EXIT

# build OPTIONS...: builds in build-KIND, only for the CPU.
build() {
  cmake -S . -B "build-$kind" -G Ninja -DTRIREME_CUDA=OFF "$@" >"build-$kind.log" || {
    cat "build-$kind.log"
    return 1
  }
  rm -f "build-$kind.log"
  cmake --build "build-$kind" -j "$jobs"
}
# sanitized KINDS: builds with sanitizers. g++ takes two to three times as long with -O2.
sanitized() { build -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 "-DTRIREME_SANITIZE=$1"; }
unit_tests() { ctest --test-dir "build-$kind" --output-on-failure --timeout 7200 -j "$jobs" -L unit; }

case $kind in
  clang)
    command -v clang++ >/dev/null || {
      echo "clang++ is not installed (Debian, Ubuntu: clang)"
      exit 1
    }
    build -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++
    export TRIREME_ALL_CASES=1
    unit_tests
    readers=$(grep -l TRIREME_ALL_CASES tests/mp/*.sh tests/mp/*.cpp | sed 's|.*/||; s|[.].*||' | paste -sd'|')
    ctest --test-dir "build-$kind" --output-on-failure --timeout 7200 -j "$jobs" -R "^mp_($readers)\$"
    ;;
  address)
    sanitized address,undefined
    # Leaks are not checked: MPI keeps its memory, and a traced process, which some tests have, cannot check.
    export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
    unit_tests
    bash tests/mp/resume_is_bit_identical.sh "$PWD" "$PWD/build-$kind/bin/trireme"
    ;;
  thread)
    sanitized thread
    export TSAN_OPTIONS=halt_on_error=1
    # UCX's memory hooks run in threads that have ended, which ThreadSanitizer no longer knows.
    export UCX_MEM_EVENTS=no
    unit_tests
    ;;
  crash)
    build
    "build-$kind/bin/mp_crash" slurm/mpirun "build-$kind/bin/trireme_on_points" "${KILLS:-500}" \
      "${SEED:-$(date +%Y%m%d)}" "${ERRORS:-200}"
    ;;
  hang)
    build
    "build-$kind/bin/mp_hangs" slurm/mpirun "build-$kind/bin/trireme_on_hangs" "${CASES:-200}" "${SEED:-$(date +%Y%m%d)}"
    # 20 s for a step that takes one: several times its duration under nice on a shared machine.
    bash tests/mp/never_alarms_without_a_hang.sh "$PWD" "$PWD/build-$kind/bin/trireme" "$PWD/configs/quickstart.yaml" \
      "${STEPS:-10000}" 60 20
    ;;
  storage)
    build
    # shellcheck disable=SC2086 # a list
    bash tests/mp/storage_stalls_block_no_step.sh "$PWD" "$PWD/build-$kind/bin/trireme_on_points" \
      "${SEED:-$(date +%Y%m%d)}" ${STALLS:-5 30 120}
    ;;
  heal)
    build
    "build-$kind/bin/mp_heal" slurm/mpirun "build-$kind/bin/trireme_on_hangs" "build-$kind/tests/libfake_nvml.so" \
      "${CASES:-300}" "${SEED:-$(date +%Y%m%d)}" "${AT_ONCE:-2}"
    for every in 1 3; do
      "build-$kind/bin/mp_heal" slurm/mpirun "build-$kind/bin/trireme_on_hangs" "build-$kind/tests/libfake_nvml.so" \
        "memory=$every" "$((${CASES:-300} / 2))" "${SEED:-$(date +%Y%m%d)}" "${AT_ONCE:-2}"
    done
    bash tests/mp/tolerates_link_flaps.sh "$PWD" "$PWD/build-$kind/bin/trireme" || (($? == 77))
    bash tests/slurm/heals_inside_the_allocation.sh "build-$kind/bin/trireme" || (($? == 77))
    ;;
  fleet)
    build
    "build-$kind/bin/supervise_fleet" "${AGENTS:-1536}" 60 0.1
    ;;
  doctor)
    build
    bash tests/mp/doctor_names_faults.sh "$PWD" "$PWD/build-$kind/bin/trireme" \
      "$(find "$PWD/build-$kind" -name 'libfake_nvml.*')" "${TIMES:-50}"
    ;;
  slow)
    build
    bash tests/mp/slow_ranks_are_named.sh "$PWD" "$PWD/build-$kind/bin/trireme_on_hangs" 10 20 "${ROUNDS:-3}" 256
    ;;
  bubble)
    build
    TRIREME_SOAK=1 "build-$kind/bin/test_schedule" --gtest_filter='*bubbles*'
    ;;
  predict)
    build
    bash tests/mp/calibration_predicts_the_quick_start.sh "$PWD" "$PWD/build-$kind/bin/trireme" "${TIMES:-3}"
    ;;
  cores)
    build
    flags=" $(grep -m 1 '^flags' /proc/cpuinfo) "
    for row in Sandybridge:avx Haswell:avx2,fma Zen:avx2,fma SkylakeX:avx512f,avx512bw,avx512dq,avx512vl \
      SapphireRapids:avx512f,avx512bw,avx512dq,avx512vl,avx512_bf16; do
      core=${row%%:*} missing=''
      for flag in $(tr , ' ' <<<"${row#*:}"); do [[ $flags == *" $flag "* ]] || missing+=" $flag"; done
      if [[ -n $missing ]]; then
        echo "soak cores: $core skipped: the processor lacks$missing"
        continue
      fi
      # An OpenBLAS that was built without a core uses another one.
      taken=$(OPENBLAS_VERBOSE=2 OPENBLAS_CORETYPE=$core "build-$kind/bin/trireme" --version 2>&1 |
        sed -n 's/^Core: //p')
      if [[ ${taken,,} != "${core,,}" ]]; then
        echo "soak cores: $core skipped: this OpenBLAS takes ${taken:-an unknown core} in its place"
        continue
      fi
      echo "soak cores: $core"
      TRIREME_ALL_CASES=1 OPENBLAS_CORETYPE=$core ctest --test-dir "build-$kind" --output-on-failure --timeout 7200 \
        -R '^(kernels|model|train|mp_parity|mp_fp8|mp_fp8_runs|golden_.*)$'
    done
    ;;
  fresh)
    for suite in bookworm noble; do bash tests/tree/fresh_distribution.sh "$suite" || (($? == 77)); done
    ;;
  *)
    echo "soak.sh: no $kind; there are clang, address, thread, crash, hang, storage, heal, fleet, doctor, slow, bubble, predict, cores, fresh"
    exit 2
    ;;
esac
