// Returns pairs of texts that lie on each other, and how wide the page is. Texts are cut by what scrolls.
() => {
  const clipped = (element, rect) => {
    let { left, top, right, bottom } = rect;
    for (let e = element; e && e !== document.documentElement; e = e.parentElement) {
      const style = getComputedStyle(e);
      const box = e.getBoundingClientRect();
      if (style.overflowX !== 'visible') { left = Math.max(left, box.left); right = Math.min(right, box.right); }
      if (style.overflowY !== 'visible') { top = Math.max(top, box.top); bottom = Math.min(bottom, box.bottom); }
    }
    return { left, top, right, bottom };
  };
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const element = node.parentElement;
    if (!node.textContent.trim() || !element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
    if (element.closest('script,style,select,caption,.skip,.unseen,#live')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      const seen = clipped(element, rect);
      if (seen.right - seen.left > 1 && seen.bottom - seen.top > 1) texts.push({ ...seen, node, text: node.textContent.trim().slice(0, 40) });
    }
  }
  texts.sort((a, b) => a.top - b.top);
  const pairs = [];
  for (let i = 0; i < texts.length; i += 1) {
    for (let j = i + 1; j < texts.length && texts[j].top < texts[i].bottom; j += 1) {
      const [a, b] = [texts[i], texts[j]];
      const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (a.node !== b.node && width > 2 && height > 3) pairs.push(`${a.text} | ${b.text}`);
    }
  }
  return { pairs, count: texts.length, width: document.documentElement.scrollWidth };
}
