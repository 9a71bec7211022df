// SPDX-License-Identifier: BSD-3-Clause
#include "data/python_functions.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

namespace lockstep::data {
namespace {

// The initial state that Matsumoto's and Nishimura's init_by_array() computes from the 32-bit digits of the
// seed, for std::mt19937, which has only init_genrand().
class MersenneState {
 public:
  using result_type = std::uint32_t;

  explicit MersenneState(std::uint64_t seed) {
    const std::array digits{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U)};
    const std::size_t count = digits[1] == 0 ? 1 : 2;
    state_[0] = 19650218U;
    for (std::size_t i = 1; i < state_.size(); ++i) {
      state_[i] = 1812433253U * mixed(i) + static_cast<std::uint32_t>(i);
    }
    std::size_t at = 1;
    for (std::size_t k = 0; k < state_.size(); ++k, at = after(at)) {
      const auto digit = k % count;
      state_[at] = (state_[at] ^ (mixed(at) * 1664525U)) + digits[digit] + static_cast<std::uint32_t>(digit);
    }
    for (std::size_t k = 1; k < state_.size(); ++k, at = after(at)) {
      state_[at] = (state_[at] ^ (mixed(at) * 1566083941U)) - static_cast<std::uint32_t>(at);
    }
    state_[0] = 0x80000000U;
  }

  template <typename Iterator>
  void generate(Iterator begin, Iterator /*end*/) {
    std::ranges::copy(state_, begin);
  }

 private:
  std::uint32_t mixed(std::size_t at) const { return state_[at - 1] ^ (state_[at - 1] >> 30U); }

  std::size_t after(std::size_t at) {
    if (at + 1 < state_.size()) return at + 1;
    state_[0] = state_.back();
    return 1;
  }

  std::array<std::uint32_t, std::mt19937::state_size> state_{};
};

std::mt19937 engine_of(std::int64_t seed) {
  const auto bits = static_cast<std::uint64_t>(seed);
  MersenneState state(seed < 0 ? 0 - bits : bits);
  return std::mt19937(state);
}

// Python keeps the drawn indices in a set where that takes less memory than a copy of the population.
bool python_copies_population(std::int64_t size, std::int64_t count) {
  double set_size = 21;
  if (count > 5) set_size += std::pow(4, std::ceil(std::log(static_cast<double>(count) * 3) / std::log(4.0)));
  return static_cast<double>(size) <= set_size;
}

}  // namespace

PythonRandom::PythonRandom(std::int64_t seed) : engine_(engine_of(seed)) {}

std::int64_t PythonRandom::below(std::int64_t end) {
  const int shift = 32 - static_cast<int>(std::bit_width(static_cast<std::uint32_t>(end)));
  std::int64_t value = 0;
  do value = static_cast<std::int64_t>(engine_()) >> shift;
  while (value >= end);
  return value;
}

std::vector<std::int64_t> PythonRandom::sample(std::int64_t size, std::int64_t count) {
  std::vector<std::int64_t> chosen;
  if (python_copies_population(size, count)) {
    std::vector<std::int64_t> pool(static_cast<std::size_t>(size));
    std::iota(pool.begin(), pool.end(), 0);
    for (std::int64_t i = 0; i < count; ++i) {
      auto& drawn = pool[static_cast<std::size_t>(below(size - i))];
      chosen.push_back(drawn);
      drawn = pool[static_cast<std::size_t>(size - i - 1)];
    }
    return chosen;
  }
  std::vector<bool> is_chosen(static_cast<std::size_t>(size));
  while (std::ssize(chosen) < count) {
    const auto drawn = below(size);
    if (is_chosen[static_cast<std::size_t>(drawn)]) continue;
    is_chosen[static_cast<std::size_t>(drawn)] = true;
    chosen.push_back(drawn);
  }
  return chosen;
}

void NumpyRandomState::shuffle(std::vector<std::int64_t>& numbers) {
  for (std::size_t i = numbers.size(); i-- > 1;) std::swap(numbers[i], numbers[up_to(i)]);
}

std::vector<std::int64_t> NumpyRandomState::permutation(std::size_t count) {
  std::vector<std::int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  shuffle(numbers);
  return numbers;
}

// Masks and rejects, for at most 32 bits.
std::size_t NumpyRandomState::up_to(std::size_t most) {
  std::size_t mask = most;
  for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
  std::size_t value = 0;
  do value = engine_() & mask;
  while (value > most);
  return value;
}

namespace {

constexpr unsigned kFirstOfTwo = 0xc2;
constexpr unsigned kFirstOfThree = 0xe0;
constexpr unsigned kFirstOfFour = 0xf0;
constexpr unsigned kLastFirst = 0xf4;

unsigned byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

std::size_t length_by_first_byte(unsigned first) {
  if (first < kFirstOfTwo || first > kLastFirst) return 1;
  if (first < kFirstOfThree) return 2;
  return first < kFirstOfFour ? 3 : 4;
}

bool is_code_point_of(std::uint32_t point, std::size_t length) {
  const bool surrogate = point >= 0xd800 && point < 0xe000;
  if (length == 3) return point >= 0x800 && !surrogate;
  return length == 2 || (point >= 0x10000 && point <= 0x10ffff);
}

// Removes the first code point.
std::uint32_t take_code_point(std::string_view& text) {
  const auto first = byte_at(text, 0);
  const auto length = length_by_first_byte(first);
  const auto escaped = first < 0x80 ? first : 0xdc00 + first;
  std::uint32_t point = length == 1 ? escaped : first & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    const bool continues = i < text.size() && (byte_at(text, i) & 0xc0) == 0x80;
    if (!continues) {
      text.remove_prefix(1);
      return escaped;
    }
    point = point << 6 | (byte_at(text, i) & 0x3f);
  }
  if (length > 1 && !is_code_point_of(point, length)) {
    text.remove_prefix(1);
    return escaped;
  }
  text.remove_prefix(length);
  return point;
}

}  // namespace

bool before_in_python(std::string_view left, std::string_view right) {
  const auto [a, b] = std::ranges::mismatch(left, right);
  const auto is_ascii = [](const char* at, std::string_view text) {
    return at == text.end() || (*at & 0x80) == 0;
  };
  if (is_ascii(a, left) && is_ascii(b, right)) return left < right;
  while (!left.empty() && !right.empty()) {
    const auto first = take_code_point(left);
    const auto second = take_code_point(right);
    if (first != second) return first < second;
  }
  return left.empty() && !right.empty();
}

}  // namespace lockstep::data
