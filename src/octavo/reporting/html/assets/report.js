// Build the page from its data.

function build() {
  const data = JSON.parse(document.getElementById('octavo-data').textContent);
  const { sides } = data;
  document.getElementById('masthead').append(
    el('p', { class: 'brand' }, 'Octavo report'), el('h1', {}, data.title),
    el('div', { class: 'verdicts' }, sides.map((side) => el('div', { class: `verdict ${side.verdict.level}` },
      side.letter ? el('p', { class: 'who' }, letter(side), side.name) : null,
      el('p', {}, el('span', { class: `badge ${side.verdict.level}` }, side.verdict.badge), side.verdict.text)))),
  );
  const made = [summary, tried, accuracy, times, depth, tensorTable, keptFloat, graphs, reproduce].map((make) => make(sides)).filter(Boolean);
  const main = document.getElementById('main');
  const list = el('ul');
  for (const part of made) {
    const id = part.title.toLowerCase().replace(/\W+/g, '-');
    main.append(el('section', { id, 'aria-labelledby': `${id}-title` }, el('h2', { id: `${id}-title` }, part.title), part.lead ? el('p', { class: 'lead' }, part.lead) : null, part.node));
    list.append(el('li', {}, el('a', { href: `#${id}` }, part.title)));
  }
  document.getElementById('contents').append(list);
  document.getElementById('colophon').append('Made by Octavo; this page is complete in itself and fetches nothing. Charts by Apache ECharts, under the Apache License 2.0.');
  for (const part of made) if (part.after) part.after();
  const redraw = (all) => { drawCharts(all === true); for (const part of made) if (part.painted) part.painted(); };
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  window.addEventListener('beforeprint', () => redraw(true));
  window.matchMedia('print').addEventListener('change', () => redraw(true));
  const links = new Map([...list.querySelectorAll('a')].map((link) => [link.getAttribute('href').slice(1), link]));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      for (const link of links.values()) link.removeAttribute('aria-current');
      links.get(entry.target.id).setAttribute('aria-current', 'true');
    }
  }, { rootMargin: '-10% 0px -75% 0px' });
  for (const section of main.querySelectorAll('section')) watch.observe(section);
  document.documentElement.dataset.ready = 'true';
}

build();
