// Functions that create elements and format numbers. Text from files becomes text nodes and attributes, never markup.
'use strict';

function put(parent, children) {
  for (const child of children.flat())
    if (child !== null && child !== undefined && child !== '')
      parent.append(child instanceof Node ? child : String(child));
  return parent;
}
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith('on'))
      made.addEventListener(key.slice(2), value);
    else if (value === true)
      made.setAttribute(key, '');
    else if (value !== false && value !== null && value !== undefined)
      made.setAttribute(key, value);
  }
  return put(made, children);
}
function drawing(name, attributes, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  return put(made, children);
}

const known = (value) => typeof value === 'number' && Number.isFinite(value);
function digits(value, count) {
  if (!known(value)) return '?';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-4) return value.toExponential(Math.max(0, count - 1));
  return Number(value.toPrecision(count)).toLocaleString('en', {maximumSignificantDigits: count});
}
function counted(value) {  // formats like the program: 11.6k
  if (!known(value)) return '?';
  for (const [unit, letter] of [[1e12, 'T'], [1e9, 'B'], [1e6, 'M'], [1e3, 'k']])
    if (Math.abs(value) >= unit) return digits(value / unit, 3) + letter;
  return digits(value, 3);
}
function bytesText(value) {
  for (const [unit, name] of [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']])
    if (value >= unit) return digits(value / unit, 3) + ' ' + name;
  return value + ' B';
}
function rateText(value) {  // formats bytes per second
  const [unit, name] = [[1e9, 'GB/s'], [1e6, 'MB/s']].find(([least]) => value >= least) || [1e3, 'kB/s'];
  return digits(value / unit, 3) + ' ' + name;
}
function duration(seconds) {
  if (!known(seconds)) return '?';
  if (seconds === 0) return '0';
  if (seconds < 1) return digits(1000 * seconds, 3) + ' ms';
  if (seconds < 60) return digits(seconds, 3) + ' s';
  const two = (n) => String(Math.floor(n)).padStart(2, '0');
  if (seconds < 3600) return Math.floor(seconds / 60) + 'm' + two(seconds % 60) + 's';
  if (seconds < 86400 * 2) return Math.floor(seconds / 3600) + 'h' + two((seconds / 60) % 60) + 'm';
  return digits(seconds / 86400, 3) + ' days';
}
// Returns the unit in which to show a span of time.
function timeUnit(seconds) {
  for (const [name, length] of [['days', 86400], ['hours', 3600], ['minutes', 60]])
    if (seconds >= 3 * length) return {name, length};
  return {name: 'seconds', length: 1};
}
const percent = (share) => (known(share) ? (100 * share).toFixed(share < 0.0995 ? 2 : 1) + ' %' : '?');
function moment(seconds) {
  if (!seconds) return '?';
  const date = new Date(1000 * seconds), two = (n) => String(n).padStart(2, '0');
  return date.getFullYear() + '-' + two(date.getMonth() + 1) + '-' + two(date.getDate()) + ' ' + two(date.getHours()) +
      ':' + two(date.getMinutes()) + ':' + two(date.getSeconds());
}
const whole = (value) => (known(value) ? Math.round(value).toLocaleString('en') : '?');
const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? '' : 's'}`;

// Creates a table. Heads are texts, nodes, or {text, class} for columns with their own class; cells are texts or nodes.
function table(heads, rows) {
  const column = (i) => ({class: heads[i].text === undefined ? null : heads[i].class});
  return element(
      'table', {},
      element(
          'thead', {},
          element(
              'tr', {},
              heads.map(
                  (head, i) =>
                      element('th', {...column(i), scope: 'col'}, head.text === undefined ? head : head.text)))),
      element(
          'tbody', {}, rows.map((cells) => element('tr', {}, cells.map((cell, i) => element('td', column(i), cell))))));
}
// Puts a table into a frame. In a narrow frame, the last cell of each row is shown below its other `count` cells.
function lastBeneath(count, made) {
  return element('div', {class: 'scroll beneath', style: `--columns:${count}`}, made);
}
// Creates a button that saves rows() as a CSV file, which the page makes itself and does not load.
function csvButton(title, rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? '' : String(value);
    return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  };
  const save = () => {
    const lines = rows().map((row) => row.map(cell).join(',') + '\n');
    const link = element('a', {
      href: URL.createObjectURL(new Blob(lines, {type: 'text/csv'})),
      download: title.toLowerCase().replace(/[^a-z0-9]+/g, '_') + '.csv'
    });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  return element('button', {type: 'button', class: 'csv screen-only', title: 'Save the data', onclick: save}, 'CSV');
}
const number = (text) => ({text, class: 'number'});  // a column of numbers, aligned to the right
const unbroken = (text) => ({text, class: 'key'});   // a column without line breaks
const long = (text) => ({text, class: 'long'});      // a column that may break within a word

// The pictures, each with a figure and render(). They are drawn once they are in the page and therefore have a width.
const pictures = [];
const undrawn = [];
function draws(picture) {
  pictures.push(picture);
  undrawn.push(picture);
}
function drawAll() {
  for (const picture of undrawn.splice(0)) picture.render();
}
const onPaper = () => document.documentElement.classList.contains('paper');
// Before printing, draws everything at the width of the paper, so that letters keep their size.
function drawForPaper(toPaper) {
  document.documentElement.classList.toggle('paper', toPaper);
  for (const picture of pictures)
    if (picture.figure.isConnected) picture.render();
}
window.addEventListener('beforeprint', () => drawForPaper(true));
window.addEventListener('afterprint', () => drawForPaper(false));

function section(id, title, ...children) { return element('section', {id}, element('h2', {}, title), children); }

// Returns about `count` round numbers in [low, high], at least `least` apart. Use least = 1 for whole numbers.
function ticks(low, high, count, least = 0) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = Math.max(span / Math.max(1, count), least), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.7);
  const made = [];  // adds 0 to turn -0 into 0
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * span; ++i) made.push(i * step + 0);
  return made;
}
function logTicks(low, high) {
  const made = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); ++e)
    for (const m of [1, 2, 5]) {
      const value = m * 10 ** e;
      if (value >= low * 0.999 && value <= high * 1.001) made.push(value);
    }
  return made.length > 3 ? made : ticks(low, high, 6);
}
const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];
