// SPDX-License-Identifier: BSD-3-Clause
#include "data/numpy_header.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/throw_error.h"
#include "data/bytes.h"

// The format: "\x93NUMPY", the version in two bytes, the length of the text in two bytes (four since version
// 2), and a Python dictionary as text: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
namespace lockstep::data {
namespace {

constexpr std::string_view kNumpyMagic = "\x93NUMPY";
constexpr std::size_t kVersionEnd = 8;
constexpr std::size_t kMostText = 1 << 16;
constexpr std::size_t kMostDimensions = 64;  // numpy's limit

struct NumpyDtype {
  std::string_view name;
  at::ScalarType dtype;
};

constexpr std::array kNumpyDtypes = {
    NumpyDtype{"b1", at::kBool},         NumpyDtype{"i1", at::kChar},           NumpyDtype{"u1", at::kByte},
    NumpyDtype{"i2", at::kShort},        NumpyDtype{"u2", at::kUInt16},         NumpyDtype{"i4", at::kInt},
    NumpyDtype{"u4", at::kUInt32},       NumpyDtype{"i8", at::kLong},           NumpyDtype{"u8", at::kUInt64},
    NumpyDtype{"f2", at::kHalf},         NumpyDtype{"f4", at::kFloat},          NumpyDtype{"f8", at::kDouble},
    NumpyDtype{"c8", at::kComplexFloat}, NumpyDtype{"c16", at::kComplexDouble},
};

// Reads the dictionary from left to right.
class HeaderText {
 public:
  HeaderText(std::string_view text, const std::string& name) : left_(text), name_(name) {}

  void parse_into(NumpyHeader& header) {
    bool has_descr = false;
    bool has_order = false;
    bool has_shape = false;
    expect('{');
    while (!accept('}')) {
      const auto key = quoted();
      expect(':');
      if (key == "descr" && !has_descr) {
        has_descr = true;
        parse_dtype(header);
      } else if (key == "fortran_order" && !has_order) {
        has_order = true;
        header.fortran_order = boolean();
      } else if (key == "shape" && !has_shape) {
        has_shape = true;
        header.shape = numbers();
      } else {
        fail();
      }
      if (!accept(',') && !at('}')) fail();
    }
    if (!has_descr || !has_order || !has_shape) fail();
  }

 private:
  [[noreturn]] void fail() const { throw_error<DataError>("{}: its NumPy header is damaged", name_); }

  bool at(char symbol) {
    left_.remove_prefix(std::min(left_.find_first_not_of(" \n\t"), left_.size()));
    return left_.starts_with(symbol);
  }
  bool accept(char symbol) {
    if (!at(symbol)) return false;
    left_.remove_prefix(1);
    return true;
  }
  void expect(char symbol) {
    if (!accept(symbol)) fail();
  }

  std::string_view quoted() {
    const char quote = at('"') ? '"' : '\'';
    expect(quote);
    const auto end = left_.find(quote);
    if (end == std::string_view::npos) fail();
    const auto text = left_.substr(0, end);
    left_.remove_prefix(end + 1);
    return text;
  }

  bool boolean() {
    at(' ');
    for (const bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (!left_.starts_with(word)) continue;
      left_.remove_prefix(word.size());
      return value;
    }
    fail();
  }

  std::vector<std::int64_t> numbers() {
    std::vector<std::int64_t> found;
    expect('(');
    while (!accept(')')) {
      at(' ');
      std::int64_t number = 0;
      const auto [end, code] = std::from_chars(left_.data(), left_.data() + left_.size(), number);
      if (code != std::errc() || number < 0 || found.size() == kMostDimensions) fail();
      left_.remove_prefix(static_cast<std::size_t>(end - left_.data()));
      accept('L');  // Python 2 wrote one
      found.push_back(number);
      if (!accept(',') && !at(')')) fail();
    }
    return found;
  }

  void parse_dtype(NumpyHeader& header) {
    if (at('[')) throw_error<DataError>("{}: is a structured array, which is no tensor", name_);
    const auto descr = quoted();
    const bool has_order =
        !descr.empty() && std::string_view("<>|=").find(descr[0]) != std::string_view::npos;
    const auto* const found =
        std::ranges::find(kNumpyDtypes, descr.substr(has_order ? 1 : 0), &NumpyDtype::name);
    if (found == kNumpyDtypes.end()) {
      throw_error<DataError>(
          "{}: its dtype is '{}'; supported are bool, integers, float16, float32, float64, complex64 and "
          "complex128; convert it with astype() in Python",
          name_, descr.substr(0, 40));
    }
    header.dtype = found->dtype;
    header.big_endian = descr.starts_with('>');
  }

  std::string_view left_;
  const std::string& name_;
};

// The bytes of the values; none when they are too many to count. The strides must be countable too.
std::optional<std::int64_t> payload_of(const NumpyHeader& header) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(header.dtype));
  bool empty = false;
  for (const auto dim : header.shape) {
    empty = empty || dim == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(dim, 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

}  // namespace

NumpyHeader parse_numpy_header(const at::Tensor& bytes, const std::string& name) {
  const auto text = as_text(bytes);
  if (!text.starts_with(kNumpyMagic)) throw_error<DataError>("{}: is not a NumPy file (.npy)", name);
  if (text.size() < kVersionEnd) throw_error<DataError>("{}: is cut short in its header", name);
  const int version = static_cast<unsigned char>(text[kNumpyMagic.size()]);
  if (version < 1 || version > 3) {
    throw_error<DataError>("{}: has version {} of the NumPy format; supported are 1 to 3", name, version);
  }
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const auto start = kVersionEnd + length_bytes;
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes && kVersionEnd + i < text.size(); ++i) {
    length |= std::size_t{static_cast<unsigned char>(text[kVersionEnd + i])} << (8 * i);
  }
  if (text.size() < start || text.size() - start < length) {
    throw_error<DataError>("{}: is cut short in its header", name);
  }
  if (length > kMostText) throw_error<DataError>("{}: its NumPy header has {} bytes", name, length);
  NumpyHeader header{.size = static_cast<std::int64_t>(start + length)};
  HeaderText(text.substr(start, length), name).parse_into(header);
  const auto payload = payload_of(header);
  const auto found = bytes.numel() - header.size;
  if (!payload || *payload > found) {
    throw_error<DataError>("{}: is cut short: the array needs {} bytes, but {} follow the header", name,
                           payload ? std::to_string(*payload) : "more than 2^63", found);
  }
  header.payload = *payload;
  return header;
}

}  // namespace lockstep::data
