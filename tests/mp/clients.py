"""Reads the exports of a run with the clients that users have. clients_read_what_a_run_shows.sh calls it.

clients.py tensorboard RUN_DIR     compares TensorBoard's scalars with metrics.jsonl; a repeated step counts once
clients.py perfetto TRACE          checks that every receive has its send, with Perfetto's schema and its trace
                                   processor, if it is installed
"""
import collections
import json
import os
import sys


def fail(text):
    sys.exit("FAILED: " + text)


def kept_steps(run_dir):
    steps = {}
    for line in open(run_dir + "/metrics.jsonl", encoding="utf-8"):
        row = json.loads(line)
        if "restart" in row:
            steps = {step: value for step, value in steps.items() if step <= row["step"]}
        elif "step_ms" in row:
            steps[row["step"]] = row
    return steps


def tensorboard(run_dir):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    reader = EventAccumulator(run_dir + "/tensorboard", size_guidance={"scalars": 0})
    reader.Reload()
    steps = kept_steps(run_dir)
    names = {"train/loss": "loss", "train/gradient_norm": "grad_norm", "train/learning_rate": "lr",
             "speed/step_ms": "step_ms", "speed/tokens_per_s": "tokens_per_s", "time/compute_ms": "compute_ms"}
    for tag, field in names.items():
        points = reader.Scalars(tag)
        if [point.step for point in points] != sorted(steps):
            fail(f"{tag}: steps {[point.step for point in points]}, expected {sorted(steps)}")
        for point in points:
            expected = steps[point.step][field]
            if abs(point.value - expected) > 1e-3 * abs(expected) + 1e-6:
                fail(f"{tag}: {point.value} at step {point.step}, metrics.jsonl has {expected}")
    if not reader.Scalars("validation/loss"):
        fail("no validation/loss")
    print(f"tensorboard: {len(steps)} steps")


def by_schema(path):
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
    trace = Trace()
    trace.ParseFromString(open(path, "rb").read())
    names, arguments, pids, parents, tracks = {}, {}, {}, {}, {}
    stacks, slices, active, flows = collections.defaultdict(list), [], {}, []
    for packet in trace.packet:
        names.update({n.iid: n.name for n in packet.interned_data.event_names})
        arguments.update({n.iid: n.name for n in packet.interned_data.debug_annotation_names})
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            parents[track.uuid] = track.parent_uuid or track.uuid
            tracks[track.uuid] = track.name
            if track.HasField("process"):
                pids[track.uuid] = track.process.pid
    for packet in sorted((p for p in trace.packet if p.HasField("track_event")), key=lambda p: p.timestamp):
        event = packet.track_event
        stack = stacks[event.track_uuid]
        if event.type == TrackEvent.TYPE_SLICE_END:
            stack.pop()["end"] = packet.timestamp
        if event.type != TrackEvent.TYPE_SLICE_BEGIN:
            continue
        values = {arguments[a.name_iid]: a.string_value or a.int_value for a in event.debug_annotations}
        here = {"name": names[event.name_iid], "begin": packet.timestamp, "pid": pids[parents[event.track_uuid]],
                "track": tracks[event.track_uuid], **values}
        stack.append(here)
        slices.append(here)
        for flow in list(event.flow_ids) + list(event.terminating_flow_ids):
            if flow in active:
                flows.append((active[flow], here))
            active[flow] = here
        for flow in event.terminating_flow_ids:
            del active[flow]
    if any(stacks.values()) or active:
        fail("some slices or flows do not end")
    return slices, flows


def perfetto(path):
    slices, flows = by_schema(path)
    source = collections.defaultdict(list)
    for out, into in flows:
        if out["begin"] >= into["begin"]:
            fail(f"inverted: {out} -> {into}")
        if (out["channel"], out["sequence"]) != (into["channel"], into["sequence"]) or out["pid"] == into["pid"]:
            fail(f"not the same transfer: {out} -> {into}")
        source[id(into)].append(out)
    receives = [s for s in slices if s["name"] == "receive"]
    for receive in receives:
        if [s["name"] for s in source[id(receive)]] != ["send"]:
            fail(f"a receive without its send: {receive}")
    gathers = [out for out, into in flows if into["name"] in ("all-gather", "reduce-scatter", "all-reduce")]
    actions = [s for s in slices if s["name"].startswith(("forward ", "backward "))]
    if not receives or not gathers or not actions or any("microbatch" not in a for a in actions):
        fail(f"{len(receives)} receives, {len(gathers)} flows of gathers, {len(actions)} actions")
    print(f"perfetto: {len(slices)} slices, {len(receives)} receives with their sends, {len(gathers)} flows of gathers")
    by_trace_processor(path, len(slices), len(receives))


def by_trace_processor(path, num_slices, num_receives):
    # Uses TRACE_PROCESSOR, or the binary that Perfetto's package has downloaded earlier. Tests download nothing.
    binary = os.environ.get("TRACE_PROCESSOR")
    folder = os.path.expanduser("~/.local/share/perfetto/prebuilts")
    if not binary and os.path.isdir(folder):
        kept = [name for name in os.listdir(folder) if name.startswith("trace_processor_shell") and ".tmp" not in name]
        binary = os.path.join(folder, kept[0]) if kept else None
    if not binary:
        print("skipped: no trace processor")
        return
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
    with TraceProcessor(trace=path, config=TraceProcessorConfig(bin_path=binary)) as processor:
        def one(query):
            return next(iter(processor.query("select count(*) as n from " + query))).n
        linked = "flow join slice a on slice_out = a.id join slice b on slice_in = b.id where "
        found = [one("slice"), one("slice where name = 'receive'"), one(linked + "a.ts >= b.ts"),
                 one(linked + "a.name = 'send' and b.name = 'receive'"),
                 one("stats where severity = 'error' and value > 0")]
        if found != [num_slices, num_receives, 0, num_receives, 0]:
            fail(f"the trace processor finds slices, receives, inverted, linked, errors: {found}")
    print("trace processor: the same")


{"tensorboard": tensorboard, "perfetto": perfetto}[sys.argv[1]](sys.argv[2])
