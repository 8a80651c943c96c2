// The sections with curves over steps, tokens or time: loss, speed, norms, and the parts of a step.

const kSmoothAbove = 200;  // number of points above which a curve is drawn as a running median

function lossCurves(axis) {
  const curves = [];
  for (const [i, run] of runs.entries()) {
    const prefix = several ? names[i] + ' ' : '';
    if (run.curves.loss)
      curves.push({...run.curves.loss, name: several ? names[i] : '', run: i, xs: axis.of(run, run.x)});
    for (const piece of run.lost)
      curves.push({name: prefix + 'lost', run: i, xs: axis.of(run, piece), mean: piece.loss, faint: true});
    const named = run.named_evaluations || [];
    for (const name of new Set(named.flatMap((e) => Object.keys(e[2]))))
      curves.push({
        name: prefix + 'validation ' + name,
        run: i,
        dots: true,
        xs: named.map(([step, time]) => axis.at(run, step, time)),
        mean: named.map((e) => (name in e[2] ? e[2][name] : null))
      });
    if (run.evaluations.length === 0) continue;
    const xs = run.evaluations.map(([step, time]) => axis.at(run, step, time));
    curves.push({name: prefix + 'validation', run: i, dots: true, xs, mean: run.evaluations.map((e) => e[2])});
  }
  return curves;
}

// Returns the limit above which a run clipped gradient norms, with a piece for each value that the config had.
function clipLimits(run, i, axis, extent) {
  const last = Number(fieldOf(run, 'optimizer.clip'));
  const changes = run.config.changes.filter(([, , name]) => name === 'optimizer.clip');
  const pieces = [];
  let from = extent[0];
  for (const [time, , , before, , step] of changes) {
    const to = axis.at(run, step, time);
    pieces.push([from, to, Number(before)]);
    from = to;
  }
  pieces.push([from, extent[1], last]);
  const seen = pieces.filter(([begin, end, value]) => value > 0 && end >= begin);
  if (seen.length === 0) return [];
  const name = several ? names[i] + ': ' : '', [, , value] = seen[seen.length - 1];
  return [
    {pieces: seen, colour: several ? runColour(i) : 'var(--ink)', text: `${name}clipped above ${digits(value, 3)}`}
  ];
}

function signsOf(marks) {
  const most = Math.max(...runs.map((run) => run.steps_a_point));
  const sign = (kind) => element(
      'span', {}, drawing('svg', {viewBox: '-13 -1 26 12', 'aria-hidden': 'true'}, markShape(kind, 'var(--ink)', '')),
      kMarks[kind].word);
  return element(
      'div', {class: 'legend faint'},
      Object.keys(kMarks).filter((kind) => marks.some((m) => m.kind === kind)).map(sign),
      runs.some((run) => run.evaluations.length > 0 || run.named_evaluations) ?
          element('span', {}, '○ validation') :
          '',
      runs.some((run) => run.lost.length > 0) ? element('span', {}, 'dotted: steps that were lost and repeated') : '',
      most > 1 ? element('span', {}, `a point is the mean of up to ${Math.ceil(most)} steps, the band their range`) :
                 '');
}

function curves() {
  const box = element('div', {}), longest = Math.max(...runs.map((run) => run.x.step.length));
  const state = {axis: 'step', log: true, smooth: longest > kSmoothAbove ? 1 + 2 * Math.round(longest / 100) : 1};
  const reset = element('button', {hidden: true, type: 'button'}, 'Show all (Esc)');
  let view = null;
  const marks = runs.flatMap(
      (run, i) =>
          happenings(run).map((mark) => ({...mark, run: i, text: (several ? names[i] + ': ' : '') + mark.text})));
  const build = () => {
    const axis = kAxes[state.axis];
    const all = runs.flatMap((run) => [...axis.of(run, run.x), ...run.lost.flatMap((piece) => axis.of(run, piece))]);
    if (all.length === 0) return box.replaceChildren(absent('No step is recorded yet.'));
    const extent = all.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
    if (extent[0] === extent[1]) extent[1] = extent[0] + 1;
    view = makeView(axis.label, axis.format, extent, axis.least);
    view.domainChanged = () => {
      reset.hidden = view.domain === view.whole;
    };
    reset.onclick = () => setDomain(view, null);
    reset.hidden = true;
    const placed = marks.map((mark) => ({...mark, x: axis.at(runs[mark.run], mark.step, mark.time)}));
    const common = {view, marks: placed, smooth: () => state.smooth};
    const log = () => state.log;
    const plot = (title, name, more) => {
      const found = runs.flatMap((run, i) => run.curves[name] === undefined ? [] : [
        {...run.curves[name], name: several ? names[i] : '', run: i, xs: axis.of(run, run.x)}
      ]);
      return found.length === 0 ? '' :
                                  curvePlot({title, curves: found, format: (v) => digits(v, 4), ...common, ...more});
    };
    const limits = runs.flatMap((run, i) => clipLimits(run, i, axis, extent));
    box.replaceChildren(element(
        'div', {class: 'grid'}, curvePlot({
          ...common,
          title: 'Loss',
          curves: lossCurves(axis),
          wide: true,
          height: 300,
          log,
          format: (v) => digits(v, 5),
          scale: (v) => digits(v, 3)
        }),
        plot('Tokens per second', 'tokens_per_s', {format: counted, zero: true}),
        plot('MFU', 'mfu', {format: percent, scale: (v) => digits(100 * v, 3) + ' %', zero: true}),
        plot('Milliseconds per step', 'step_ms', {zero: true}),
        plot(
            'FLOPs of the busiest dp rank above the mean', 'imbalance',
            {format: percent, scale: (v) => digits(100 * v, 3) + ' %', zero: true}),
        plot('Learning rate', 'lr', {zero: true, smooth: () => 1, format: (v) => digits(v, 3)}),
        plot('Gradient norm', 'grad_norm', {log, limits}),
        plot('GPU power, rank 0', 'gpu_watts', {format: (v) => digits(v, 3) + ' W', zero: true}),
        plot('GPU clock, rank 0', 'gpu_ghz', {format: (v) => digits(v, 4) + ' GHz', zero: true}),
        plot('GPU memory, rank 0', 'gpu_gib', {format: (v) => digits(v, 3) + ' GiB', zero: true}),
        plot('GPU temperature, rank 0', 'gpu_celsius', {format: (v) => digits(v, 3) + ' °C', zero: true})));
    if (box.isConnected) drawAll();
  };
  const choices = Object.keys(kAxes).map((name) => {
    const choose = () => {
      state.axis = name;
      build();
    };
    const input = element('input', {type: 'radio', name: 'axis', checked: name === state.axis, onchange: choose});
    return element('label', {}, input, name);
  });
  const log = element('input', {
    type: 'checkbox',
    checked: true,
    onchange: () => {
      state.log = log.checked;
      refresh(view);
    }
  });
  const smoothing = element('span', {});
  const slider = element('input', {
    type: 'range',
    class: 'short',
    min: 0,
    max: Math.max(1, Math.floor(longest / 10)),
    value: state.smooth >> 1,
    oninput: () => {
      state.smooth = 1 + 2 * Number(slider.value);
      showSmoothing();
      if (view) refresh(view);
    }
  });
  const showSmoothing = () => {
    smoothing.textContent = state.smooth > 1 ? `median of ${state.smooth} points, raw data in a pale colour` : 'none';
  };
  showSmoothing();
  build();
  return element(
      'div', {}, several ? element('div', {class: 'legend'}, runs.map((_, i) => nameTag(i))) : '',
      element(
          'div', {class: 'bar screen-only'}, element('span', {}, 'x axis:'), choices,
          element('label', {}, log, 'logarithmic loss and norm'), element('label', {}, 'smoothing ', slider, smoothing),
          reset),
      element(
          'p', {class: 'faint screen-only'},
          'Drag to zoom in. In the focused chart, the arrow keys, Home and End move the cursor; + and - zoom.'),
      signsOf(marks), box);
}

function stepTime() {
  const state = {share: false};
  const totals = runs.flatMap(
      (run) => stackColumns(run.x.step, run.parts, Object.keys(run.parts), [0, run.x.step.length]).map((c) => c.sum));
  const made = runs.map((run) => {
    const parts = Object.keys(run.parts);
    if (parts.length === 0) return null;
    const xs = run.x.step, first = Math.min(xs[0] - 1, xs[xs.length - 1] - 1);
    const view = makeView('step', (v) => whole(v), [first, xs[xs.length - 1]], 1);
    const plot = stackPlot({
      title: 'Milliseconds per step on world rank 0',
      view,
      xs,
      parts: run.parts,
      looks: kStepParts,
      height: 260,
      share: () => state.share,
      top: several ? topOf(totals) : null,
      format: (v) => digits(v, 3) + ' ms'
    });
    const mean =
        Object.fromEntries(parts.map((name) => [name, run.parts[name].reduce((a, v) => a + (v || 0), 0) / xs.length]));
    const all = parts.reduce((sum, name) => sum + mean[name], 0) || 1;
    const shares = Object.fromEntries(parts.map((name) => [name, mean[name] / all]));
    const rows = Object.keys(kStepParts)
                     .filter((name) => mean[name] > 0)
                     .map((name) => [name, digits(mean[name], 3) + ' ms', percent(shares[name])]);
    return {
      view,
      node: element(
          'div', {}, plot, shareBar(shares, kStepParts, (name) => `${name} ${percent(shares[name])}`),
          table(['part', number('mean'), number('share')], rows))
    };
  });
  const box = element('input', {
    type: 'checkbox',
    onchange: () => {
      state.share = box.checked;
      for (const one of made)
        if (one) refresh(one.view);
    }
  });
  return element(
      'div', {},
      absent(
          'tp, cp, ep, pp, dp: exposed transfers, for which compute waited; bubble: waits for other stages; ' +
          'data: waits for the batch; other: host time without work on the device.'),
      element('div', {class: 'bar screen-only'}, element('label', {}, box, 'as shares of the step')),
      oneEach((run, i) => (made[i] ? made[i].node : absent('No step is recorded yet.'))));
}
