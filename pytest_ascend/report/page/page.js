
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = id => document.getElementById(id);
  const root = document.documentElement;
  const PAGE = 100;

  const make = (name, text, kind) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;  // never as markup
    if (kind) element.className = kind;
    return element;
  };

  // Dark or light
  const stored = action => { try { return action(window.localStorage); } catch { return null; } };
  const theme = wanted => { if (wanted === "dark" || wanted === "light") root.dataset.theme = wanted; };
  theme(stored(s => s.getItem("ascend-theme")));
  const turn = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    theme(dark ? "light" : "dark");
    stored(s => s.setItem("ascend-theme", root.dataset.theme));
  };
  at("theme").addEventListener("click", turn);
  for (const id of ["theme", "keys", "filter", "rows", "pages"]) at(id).hidden = false;

  // Commands to copy
  if (navigator.clipboard) for (const command of document.querySelectorAll(".command")) {
    const button = make("button", "Copy");
    button.type = "button";
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(command.querySelector("code").textContent); button.textContent = "Copied"; }
      catch { button.textContent = "Can't copy"; }
    });
    command.append(button);
  }

  // The list
  const [STATE, WORD, API, DTYPE, PATH, NAME, REASON, MUCH, CARD] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
  const test = row => data.words[row[PATH]] + (row[NAME] ? "::" + row[NAME] : "");
  const texts = data.rows.map(row =>
    [WORD, API, DTYPE, REASON].map(i => data.words[row[i]]).concat(test(row), data.states[row[STATE]]).join("\n").toLowerCase());
  const counts = data.states.map((_, i) => data.rows.filter(row => row[STATE] === i).length);
  const wanted = new Set(data.states.keys());
  data.states.forEach((state, i) => {
    if (!counts[i]) return;
    const label = make("label"), box = make("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => { box.checked ? wanted.add(i) : wanted.delete(i); find(); });
    label.append(box, ` ${state} (${counts[i]})`);
    at("states").append(label);
  });
  let found = [], first = 0;
  const body = document.querySelector(".results tbody");
  const show = () => {
    body.replaceChildren(...found.slice(first, first + PAGE).map(i => {
      const row = data.rows[i], line = make("tr"), verdict = make("td");
      verdict.append(make("span", data.words[row[WORD]], "badge " + data.states[row[STATE]]));
      const name = make("td", undefined, "test"), code = make("code", test(row));
      if (row[CARD] >= 0) {
        const link = make("a");
        link.href = "#finding-" + row[CARD];
        link.append(code);
        name.append(link);
      } else name.append(code);
      line.append(verdict, make("td", data.words[row[API]]), make("td", data.words[row[DTYPE]]), make("td", row[MUCH]), name,
                  make("td", data.words[row[REASON]], "reason"));
      return line;
    }));
    const last = Math.min(first + PAGE, found.length);
    at("at").textContent = found.length ? `${first + 1} to ${last} of ${found.length}` : "";
    at("previous").disabled = first === 0;
    at("next").disabled = last >= found.length;
    at("pages").hidden = found.length <= PAGE;
    at("found").textContent = found.length === data.rows.length ? "" : `${found.length} of ${data.rows.length} results`;
  };
  const find = () => {
    const asked = at("search").value.toLowerCase().split(/\s+/).filter(Boolean), order = Number(at("order").value);
    found = [...data.rows.keys()].filter(i => wanted.has(data.rows[i][STATE]) && asked.every(word => texts[i].includes(word)));
    if (order) {
      const key = i => order === PATH ? test(data.rows[i]) : data.words[data.rows[i][order]];
      const keys = new Map(found.map(i => [i, key(i)]));
      found.sort((a, b) => keys.get(a) < keys.get(b) ? -1 : keys.get(a) > keys.get(b) ? 1 : a - b);
    }
    first = 0;
    show();
  };
  const leaf = step => {
    const next = first + step * PAGE;
    if (next >= 0 && next < found.length) { first = next; show(); }
  };
  at("search").addEventListener("input", find);
  at("order").addEventListener("change", find);
  at("filter").addEventListener("submit", event => event.preventDefault());
  at("previous").addEventListener("click", () => leaf(-1));
  at("next").addEventListener("click", () => leaf(1));
  find();

  // The rest of the matrix
  const more = at("more-apis");
  if (more) {
    more.hidden = false;
    more.addEventListener("click", () => {
      const rows = document.querySelector(".matrix tbody");
      rows.append(...data.apis.slice(rows.rows.length).map(([api, ...cells]) => {
        const line = make("tr"), head = make("th");
        head.scope = "row";
        head.append(make("code", api));
        line.append(head, ...cells.map(([state, count]) => {
          const cell = make("td", state < 0 ? "" : data.states[state], state < 0 ? "" : "cell " + data.states[state]);
          if (count > 1) cell.append(" ", make("small", String(count)));
          return cell;
        }));
        return line;
      }));
      at("shown-apis").textContent = `all ${data.apis.length} APIs, the worst first`;
      more.remove();
    });
  }

  // Findings: links open them, j and k go through them
  const findings = [...document.querySelectorAll("#findings > .finding")];
  const follow = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.matches("details")) { target.open = true; target.querySelector("summary").focus(); target.scrollIntoView(); }
  };
  addEventListener("hashchange", follow);
  follow();
  const step = by => {
    const now = findings.indexOf(document.activeElement.closest(".finding"));
    const next = findings[now < 0 ? (by > 0 ? 0 : findings.length - 1) : Math.min(Math.max(now + by, 0), findings.length - 1)];
    if (next) { next.querySelector("summary").focus(); next.scrollIntoView({ block: "nearest" }); }
  };
  addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const act = { j: () => step(1), k: () => step(-1), "/": () => at("search").focus(), t: turn,
                  "[": () => leaf(-1), "]": () => leaf(1) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
})();
