// Scores of the search: pages for users come before those about the code itself.
var Scorer = {
  score: (result) => {
    const [docname, title, anchor, descr, found] = result;
    const score = anchor && !descr ? found + 5 : found; // a heading with all words typed, in their order
    if (/^(architecture|kernels|offload_threads|changes|generated\/changelog)/.test(docname)) return score - 12;
    if (/^(index|api\/index|generated\/)/.test(docname)) return score - 1;
    if (docname === "concepts/glossary" && !anchor) return score - 3; // words of many pages stand there
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
// The search asks for pages with all words. Of three or more words, pages that lack one, or two, come
// after those. Search is defined after this script, and is there when a query is parsed.
const isStopword = stopwords.has.bind(stopwords);
let isChanged = false;
stopwords.has = (word) => {
  if (!isChanged) {
    isChanged = true;
    const withAll = Search.performTermsSearch;
    const withMost = (words, excluded, missing) => {
      const found = new Map(withAll(words, excluded).map((result) => [result[0], result]));
      if (found.size >= 3 || words.size < 3 || missing === 2) return found;
      for (const word of words) {
        const fewer = new Set([...words].filter((other) => other !== word));
        for (const [page, result] of withMost(fewer, excluded, missing + 1))
          if (!found.has(page)) found.set(page, result.map((part, k) => (k === 4 ? part - 10 : part)));
      }
      return found;
    };
    Search.performTermsSearch = (words, excluded) => [...withMost(words, excluded, 0).values()];
  }
  return isStopword(word);
};
