// Order of the cuts of a small TT-SVD: the next mode, or several, from the left or from the right.
#pragma once

#include <algorithm>

namespace tensorjax {

constexpr long kGuess = 6;  // rank expected of bonds that are not yet cut

// Nanoseconds of a cut of `size` entries by the Gram matrix of `side` rows or columns, to a rank, as
// those of tensorjax/linalg/_predicted_times.py. Only ratios of them are compared.
inline double cut_time(double size, double side, double rank) {
  side = std::min(side, size / side);
  const double found = size * (0.9 + side / 60) + 85 * side * side * (1 + side / 1000);
  return rank < side ? found + size * (0.9 + rank / 35) : found;
}

// Entries that are left after such a cut.
inline double left_after(double size, double side, double rank) {
  return size / side * std::min(rank, std::min(side, size / side));
}

// Whether to cut columns from the right first, `right` of them, or `left` rows from the left: one
// after the other in both orders, for the first cut takes data off the second. What is split off on
// the right is orthonormalised once more in the end.
inline bool right_first(double size, double left, double right, double guess) {
  constexpr double kAgain = 1e4, kSurely = 0.9;
  if (right * right > size) return false;
  const double again = kAgain + 2 * cut_time(std::min(guess, right) * right, guess, 0);
  const double from_left =
      cut_time(size, left, guess) + cut_time(left_after(size, left, guess), right, guess);
  const double from_right =
      cut_time(size, right, guess) + cut_time(left_after(size, right, guess), left, guess);
  return from_right + again < kSurely * from_left;
}

}  // namespace tensorjax
