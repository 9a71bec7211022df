// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

// What functions of Python and NumPy return.
namespace lockstep::data {

// CPython's random.Random(seed), as far as splits draw from it.
class PythonRandom {
 public:
  // CPython ignores the sign of the seed.
  explicit PythonRandom(std::int64_t seed);
  // random.sample(range(size), count), for 0 <= count <= size < 2^32. The algorithm of Python 3.2 to 3.14.
  std::vector<std::int64_t> sample(std::int64_t size, std::int64_t count);

 private:
  std::int64_t below(std::int64_t end);

  std::mt19937 engine_;
};

// numpy.random.RandomState(seed), as far as splits draw from it.
class NumpyRandomState {
 public:
  explicit NumpyRandomState(std::uint32_t seed) : engine_(seed) {}

  void shuffle(std::vector<std::int64_t>& numbers);
  // Of 0 .. count-1.
  std::vector<std::int64_t> permutation(std::size_t count);

 private:
  std::size_t up_to(std::size_t most);

  std::mt19937 engine_;
};

// Whether Python's sorted() has `left` before `right`, names of files as os.listdir() gives them: by code
// points, where a byte that is not UTF-8 counts as U+DC00 and its value (surrogateescape).
bool before_in_python(std::string_view left, std::string_view right);

}  // namespace lockstep::data
