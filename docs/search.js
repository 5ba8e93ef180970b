// Scores of the search: pages for users come before those about the code itself.
var Scorer = {
  score: (result) => {
    const [docname, title, anchor, descr, score] = result;
    if (/^(architecture|kernels|offload_threads|changes|generated\/changelog)/.test(docname)) return score - 12;
    if (/^(index|api\/index|generated\/)/.test(docname)) return score - 1;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
