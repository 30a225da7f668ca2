"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const form = document.getElementById("filters"), list = document.getElementById("list");
  const count = document.getElementById("count"), more = document.getElementById("more");
  const PAGE = 20;
  let matches = [], shown = 0;

  // Whatever a model has written becomes text, never markup.
  const element = (kind, text, name) => {
    const made = document.createElement(kind);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  };
  const options = (select, values) => {
    for (const [value, text] of values) {
      const option = element("option", text);
      option.value = value;
      select.append(option);
    }
  };

  const shade = (one, value) => {
    const by = form.elements.colour.value;
    if (by === "logprob" && value !== null) return `rgba(214, 69, 61, ${Math.min(-value / 4, 0.85).toFixed(2)})`;
    if (by === "advantage" && one.advantage) {
      const strength = Math.min(Math.abs(one.advantage) / 2, 0.5).toFixed(2);
      return one.advantage > 0 ? `rgba(18, 161, 80, ${strength})` : `rgba(214, 69, 61, ${strength})`;
    }
    return "";
  };

  const body = (one) => {
    const text = element("pre", undefined, "said");
    if (!one.pieces) {
      text.textContent = one.completion ?? "";
      text.style.backgroundColor = shade(one, null);
      return text;
    }
    let before = "";
    one.pieces.forEach((piece, number) => {
      const span = element("span", piece);
      const value = one.logprobs[number];
      const who = !one.talk ? "" : value === null ? "tool: " : "model: ";
      if (who !== before) text.append(element("b", before ? `\n${who}` : who));
      before = who;
      span.style.backgroundColor = shade(one, value);
      span.title = value === null ? "no log-probability" : `log-probability ${value}, probability ${Math.exp(value).toPrecision(2)}`;
      text.append(span);
    });
    return text;
  };

  const card = (one) => {
    const made = element("article", undefined, "completion");
    const head = element("p", undefined, "head");
    head.append(element("b", `step ${one.step}`), ` ${one.question ?? ""}`);
    const right = one.accuracy === 1;
    const marks = [`${right ? "right" : "wrong"}: read ${one.extracted ?? "no answer"}, gold ${one.answer ?? "unknown"}`];
    for (const name of ["reward", "format", "overlong", "advantage", "tokens"]) if (one[name] !== undefined) marks.push(`${name} ${one[name]}`);
    for (const [name, value] of Object.entries(one.parts ?? {})) marks.push(`${name} ${value}`);
    if (one.finish === "length") marks.push("truncated");
    if (one.killed) marks.push("its check was killed");
    made.append(head, element("p", marks.join("; "), right ? "head" : "head wrong"), body(one));
    if (one.prompt) {
      const prompt = element("details");
      prompt.append(element("summary", "prompt"), element("pre", one.prompt, "said"));
      made.append(prompt);
    }
    return made;
  };

  const extend = () => {
    const next = matches.slice(shown, shown + PAGE);
    list.append(...next.map(card));
    shown += next.length;
    more.hidden = shown >= matches.length;
    count.textContent = `${matches.length} completions match; ${shown} are shown`;
  };

  const filter = () => {
    const { run, step, right, finish, reward, least, most, text } = form.elements;
    const wanted = text.value.toLowerCase();
    const above = (field, value) => field.value === "" || value >= Number(field.value);
    matches = (data[Number(run.value)]?.completions ?? []).filter((one) =>
      (step.value === "" || one.step === Number(step.value)) &&
      (right.value === "" || (one.accuracy === 1) === (right.value === "1")) &&
      (finish.value === "" || one.finish === finish.value) &&
      above(reward, one.reward) && above(least, one.tokens) && (most.value === "" || one.tokens <= Number(most.value)) &&
      (wanted === "" || (one.completion ?? "").toLowerCase().includes(wanted) || (one.question ?? "").toLowerCase().includes(wanted)));
    list.replaceChildren();
    shown = 0;
    extend();
  };

  const steps = () => {
    const select = form.elements.step;
    select.replaceChildren();
    const all = data[Number(form.elements.run.value)]?.completions ?? [];
    options(select, [["", "any"], ...[...new Set(all.map((one) => one.step))].map((step) => [step, step])]);
  };

  options(form.elements.run, data.map((run, number) => [number, run.name]));
  form.elements.run.parentElement.hidden = data.length < 2;
  form.elements.run.addEventListener("change", steps);
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", extend);
  form.hidden = false;
  steps();
  filter();
})();
