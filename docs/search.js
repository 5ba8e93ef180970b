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
// The search asks for pages with all words. Words that no page has are left out, as "the" is.
const isCommon = stopwords.has.bind(stopwords);
stopwords.has = (word) => {
  if (isCommon(word)) return true;
  const stem = new Stemmer().stemWord(word);
  if (stem.length < 3 || stem[0] === "-") return false;
  const { terms, titleterms } = Search._index;
  return ![terms, titleterms].some((known) => Object.keys(known).some((term) => term.includes(stem)));
};
