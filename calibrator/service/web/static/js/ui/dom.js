// Elements without markup strings: nothing that a deployment is called can become HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [name, v] of Object.entries(value)) node.style.setProperty(name, v);
    else if (key === "dataset") Object.assign(node.dataset, value);
    else if (key === "value" || key === "checked") node[key] = value;
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child);
  }
}

/** An HTML element: h("a", {href, class, onclick, style: {width: "3px"}}, "text", node, [nodes]). */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** An SVG element, same arguments. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** Replace what is inside a node. */
export function replace(node, ...children) {
  node.replaceChildren();
  append(node, children);
  return node;
}

/** Call a function once calls have stopped for a moment, and at the latest after `most` milliseconds. */
export function settle(call, wait = 400, most = 2000) {
  let timer = 0;
  let first = 0;
  return () => {
    const now = performance.now();
    if (!timer) first = now;
    clearTimeout(timer);
    timer = setTimeout(() => { timer = 0; call(); }, Math.max(0, Math.min(wait, first + most - now)));
  };
}
