// The runs of the report, read from the data that the program embeds in the page.

const report = JSON.parse(document.getElementById('data').textContent);
const runs = report.runs, several = runs.length > 1;
const names = runs.map((run, i) => {
  const same = runs.some((other, k) => k !== i && other.name === run.name);
  return same ? `${run.name} (${run.dir.split('/').slice(-2).join('/')})` : run.name;
});
const nameTag = (i) => element(
    'span', {},
    drawing('svg', {viewBox: '0 0 26 12', style: 'width:26px;height:12px', 'aria-hidden': 'true'}, drawing('line', {
              x1: 0,
              x2: 26,
              y1: 6,
              y2: 6,
              'stroke-width': 2.4,
              'stroke-dasharray': kDashes[i],
              style: `stroke:${runColour(i)}`
            })),
    ' ' + names[i]);
const oneEach = (make) => element(
    'div', {class: 'runs'},
    runs.map((run, i) => element('div', {}, several ? element('h3', {}, nameTag(i)) : '', make(run, i))));
const absent = (text) => element('p', {class: 'faint'}, text);


// The possible x axes of curves. Time starts at a run's first event and uses the unit that suits the longest run.
const kTime = timeUnit(Math.max(...runs.map((run) => (run.x.time[run.x.time.length - 1] || 0) - began(run))));
const kAxes = {
  step: {label: 'step', of: (run, x) => x.step, format: (v) => whole(v), least: 1, at: (run, step) => step},
  tokens: {label: 'tokens', of: (run, x) => x.tokens, format: (v) => counted(v), least: 1, at: tokensAt},
  time: {
    label: kTime.name,
    of: (run, x) => x.time.map((t) => (t - began(run)) / kTime.length),
    format: (v) => digits(v, 3),
    least: 0,
    at: (run, step, time) => (time - began(run)) / kTime.length
  },
};
function began(run) { return run.wall ? run.wall.begin : run.x.time[0] || 0; }
function tokensAt(run, step) {
  const i = nearestIndex(run.x.step, step);
  return i < 0 || !run.x.step[i] ? 0 : run.x.tokens[i] * step / run.x.step[i];
}
function fieldOf(run, name) { return (run.config.fields.find((field) => field[0] === name) || [])[1]; }

// Returns the marks of a run as [{step, time, kind (of kMarks), text}]: ends of attempts, resumes, steps that were not
// finite, and changes of the config.
function happenings(run) {
  const list = [], attempts = run.wall ? run.wall.attempts : [];
  attempts.forEach((attempt, k) => {
    const isLast = k + 1 === attempts.length, gone = !attempt.outcome && !isLast;
    const kind = attempt.failed || gone ? 'crash' : attempt.code === 0 ? 'end' : attempt.code === 75 ? 'stop' : '';
    const why = attempt.outcome || 'it ended without a message';
    if (kind)
      list.push({
        step: attempt.last_step,
        time: attempt.end,
        kind,
        text: `attempt ${attempt.number} ended after step ${whole(attempt.last_step)}: ${why}`
      });
    if (k > 0)
      list.push({
        step: attempt.first_step,
        time: attempt.begin,
        kind: 'resume',
        text: `attempt ${attempt.number} resumed at step ${whole(attempt.first_step)}`
      });
  });
  if (attempts.length === 0)
    run.restarts.forEach(([step, time, lost], k) => list.push({
      step,
      time,
      kind: 'resume',
      text: `restart ${k + 1} at step ${whole(step)}, ${plural(lost, 'step')} lost`
    }));
  for (const [step, time, places] of run.not_finite)
    list.push({step, time, kind: 'broken', text: `step ${whole(step)} was not finite: ${places}`});
  const changes = new Map();
  for (const [time, , name, before, after, step] of run.config.changes)
    changes.set(step, [time, [...(changes.get(step) || [0, []])[1], `${name} ${before || '–'} → ${after || '–'}`]]);
  for (const [step, [time, texts]] of changes)
    list.push({step, time, kind: 'config', text: texts.slice(0, 4).join(', ') + (texts.length > 4 ? ', ...' : '')});
  return list;
}
