// Elements, text and numbers. Text from a model goes through clean() and textContent, never through markup.

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const EXACT = 200;

const clean = (text) => String(text).replace(HIDDEN, '');

function short(text, most = 60) {
  const cleaned = clean(text);
  if (cleaned.length <= most) return cleaned;
  const half = Math.floor((most - 1) / 2);
  return `${cleaned.slice(0, half)}…${cleaned.slice(-half)}`;
}

// el('p', {class: 'lead'}, 'text', child, null): null and undefined children are left out.
function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : document.createTextNode(clean(child)));
  }
  return element;
}

// A name out of a model: isolated, so that its writing direction does not reach its surroundings.
const named = (text) => el('bdi', { dir: 'ltr' }, text === '' || text === null || text === undefined ? '(no name)' : text);

const known = (value) => value !== null && value !== undefined;

function decibels(value) {
  if (!known(value)) return '–';
  return value >= EXACT ? 'exact' : value.toFixed(1);
}

function compact(value) {
  if (!known(value)) return '–';
  if (value === 0) return '0';
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

const share = (value) => (known(value) ? `${(100 * value).toFixed(value > 0 && value < 0.1 ? 2 : 0)} %` : '–');

const percent = (value) => `${(100 * value).toFixed(1)} %`;

// A metric in its unit: a share in percent, an SQNR in dB, another number in four digits.
function metric(value, { name = '', percent: isShare = false }) {
  if (!known(value)) return '–';
  if (isShare) return percent(value);
  return name.endsWith('_db') ? `${decibels(value)} dB` : compact(value);
}

// Half the width of Wilson's 95 % interval of a share that was counted in so many samples, in points.
function halfWidth(value, count) {
  const z = 1.959964;
  return (100 * z * Math.sqrt((value * (1 - value)) / count + (z * z) / (4 * count * count))) / (1 + (z * z) / count);
}

const counted = (count, noun) => `${count} ${noun}${count === 1 ? '' : 's'}`;

const span = (pair) => {
  if (!pair) return '–';
  return pair[0] === pair[1] ? compact(pair[0]) : `${compact(pair[0])} … ${compact(pair[1])}`;
};

function duration(seconds) {
  if (!known(seconds)) return '–';
  for (const [unit, scale] of [['s', 1], ['ms', 1e3], ['µs', 1e6]]) {
    const value = seconds * scale;
    if (value >= 1 || unit === 'µs') return `${value >= 100 ? value.toFixed(0) : Number(value.toPrecision(3))} ${unit}`;
  }
  return '';
}

function bytes(count) {
  if (!known(count)) return '–';
  let value = count;
  for (const unit of ['bytes', 'kB', 'MB', 'GB', 'TB']) {
    if (Math.abs(value) < 1000) return `${unit === 'bytes' ? value : Number(value.toPrecision(3))} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(0)} PB`;
}

const say = (text) => { document.getElementById('live').textContent = clean(text); };

const letter = (side) => (side.letter ? el('span', { class: `letter ${side.letter.toLowerCase()}` }, side.letter) : null);

const facts = (rows) => el('dl', { class: 'facts' }, rows.filter(([, value]) => known(value)).flatMap(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]));
