// Order of the cuts of a small TT-SVD: the next mode, or several, from the left or from the right.
#pragma once

#include <algorithm>

namespace tensorjax {

constexpr long kGuess = 6;  // rank expected of bonds that are not yet cut

// Nanoseconds of a cut of `size` entries by the Gram matrix of `side` rows or columns, to a rank, as
// those of tensorjax/linalg/_predicted_times.py. Only ratios of them are compared. parts: 2 of complex
// entries, of which a product takes four real ones.
inline double cut_time(double size, double side, double rank, double parts) {
  side = std::min(side, size / side);
  const double eigen = 85 * side * side * (1 + side / 1000) * (parts == 2 ? 3 : 1);
  const double found = size * parts * (0.9 + parts * side / 60) + eigen;
  return rank < side ? found + size * parts * (0.9 + parts * rank / 35) : found;
}

// Entries that are left after such a cut.
inline double left_after(double size, double side, double rank) {
  return size / side * std::min(rank, std::min(side, size / side));
}

// Whether to cut columns from the right first, `right` of them, or `left` rows from the left: one
// after the other in both orders, for the first cut takes data off the second. What is split off on
// the right is orthonormalised once more in the end.
inline bool right_first(double size, double left, double right, double guess, double parts) {
  constexpr double kAgain = 1e4, kSurely = 0.9;
  if (right * right > size) return false;
  const auto cut = [&](double entries, double side) { return cut_time(entries, side, guess, parts); };
  const double again = kAgain + 2 * cut_time(std::min(guess, right) * right, guess, 0, parts);
  const double from_left = cut(size, left) + cut(left_after(size, left, guess), right);
  const double from_right = cut(size, right) + cut(left_after(size, right, guess), left);
  return from_right + again < kSurely * from_left;
}

}  // namespace tensorjax
