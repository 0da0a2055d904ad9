// A table that can be searched and sorted; rows beyond the first hundred are drawn when asked for.

const CHUNK = 100;

// columns: {label, value(row), show?(row), numeric?, wide?, prose?}; the first one heads its row.
const cellClass = (column) => (column.numeric ? 'num' : column.prose ? 'prose' : column.wide ? 'wide' : null);

function table({ caption, columns, rows, search = null, filter = null, sort = null, onselect = null, key = null, free = false }) {
  const state = { query: '', choice: '', column: sort ? sort.column : -1, down: sort ? sort.down : false, limit: CHUNK, selected: null };
  const body = el('tbody');
  const count = el('span', { class: 'count', role: 'status' });
  const more = el('div', { class: 'more' });
  const heads = columns.map((column, index) => el(
    'th', { scope: 'col', class: cellClass(column), 'aria-sort': 'none' },
    rows.length > 1 ? el('button', { class: 'sort', type: 'button', onclick: () => order(index) }, column.label) : column.label,
  ));

  function order(index) {
    state.down = state.column === index ? !state.down : false;
    state.column = index;
    draw();
  }

  function matching() {
    const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
    return rows.filter((row) => {
      if (state.choice && filter.value(row) !== state.choice) return false;
      if (!words.length) return true;
      const text = search.text(row).toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }

  function ordered(found) {
    if (state.column < 0) return found;
    const { value } = columns[state.column];
    const sign = state.down ? -1 : 1;
    return [...found].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (!known(a) || !known(b)) return known(a) ? -1 : known(b) ? 1 : 0;
      return sign * (typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', { numeric: true }));
    });
  }

  function cell(column, row, index) {
    const content = column.show ? column.show(row) : known(column.value(row)) ? column.value(row) : '–';
    const classes = cellClass(column);
    if (index > 0) return el('td', { class: classes }, content);
    const inner = onselect ? el('button', { class: 'link', type: 'button', onclick: () => onselect(row) }, content) : content;
    return el('th', { scope: 'row', class: classes }, inner);
  }

  function draw() {
    const found = ordered(matching());
    heads.forEach((head, index) => head.setAttribute('aria-sort', index !== state.column ? 'none' : state.down ? 'descending' : 'ascending'));
    body.replaceChildren(...found.slice(0, state.limit).map((row) => {
      const line = el('tr', {}, columns.map((column, index) => cell(column, row, index)));
      if (key) line.dataset.key = key(row);
      if (key && key(row) === state.selected) line.classList.add('selected');
      return line;
    }));
    count.textContent = found.length === rows.length ? counted(rows.length, 'row') : `${found.length} of ${counted(rows.length, 'row')}`;
    const left = found.length - state.limit;
    more.replaceChildren(...(left > 0 ? [
      el('button', { type: 'button', onclick: () => { state.limit += CHUNK; draw(); } }, `Show ${Math.min(CHUNK, left)} more`), ' ',
      el('button', { type: 'button', onclick: () => { state.limit = Infinity; draw(); } }, `Show all ${found.length}`),
    ] : []));
  }

  const tools = el('div', { class: 'tools' });
  if (search) {
    tools.append(el('label', { class: 'grow' }, search.label, el('input', {
      type: 'search', autocomplete: 'off', spellcheck: 'false',
      oninput: (event) => { state.query = event.target.value; state.limit = CHUNK; draw(); },
    })));
  }
  if (filter) {
    const choices = [...new Set(rows.map(filter.value))].sort();
    tools.append(el('label', {}, filter.label, el('select', {
      onchange: (event) => { state.choice = event.target.value; state.limit = CHUNK; draw(); },
    }, el('option', { value: '' }, 'all'), choices.map((choice) => el('option', { value: choice }, choice)))));
  }
  if (search || filter) tools.append(count);
  draw();
  const node = el('div', { class: 'block' }, search || filter ? tools : null,
    el('div', { class: free ? 'scroll free' : 'scroll', tabindex: free ? null : '0', role: 'region', 'aria-label': caption },
      el('table', {}, el('caption', { class: 'unseen' }, caption), el('thead', {}, el('tr', {}, heads)), body), more));
  return {
    node,
    select(selected) {
      state.selected = selected;
      for (const line of body.children) line.classList.toggle('selected', line.dataset.key === selected);
    },
  };
}
