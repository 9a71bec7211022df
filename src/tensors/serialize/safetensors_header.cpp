// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/throw_error.h"
#include "serialize/dtypes.h"

namespace lockstep::safetensors {

std::string shown(std::string_view name) {
  constexpr std::size_t longest = 200;
  return repr(Value(name), longest);
}

namespace {

using Json = nlohmann::json;

// More than any tensor has; PyTorch computes with fewer.
constexpr std::size_t kMostDimensions = 1000;
// The Python package reads no deeper either.
constexpr int kDeepest = 125;

// Takes the events of the parser and refuses what does not belong where it comes, so that neither depth nor
// size of a strange header is ever built up.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  Header take() { return std::move(header_); }

  bool null() override {
    if (place_ == Place::entry && key_ == kMetadataKey) return go_to(Place::top);
    return unknown_or("null");
  }
  bool boolean(bool /*value*/) override { return unknown_or("a bool"); }
  bool number_integer(number_integer_t /*value*/) override { return unknown_or("a negative number"); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return unknown_or("a number that is not a 64-bit integer");
  }
  bool binary(binary_t& /*value*/) override { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) return add_size(value);
    if (place_ == Place::offsets) return add_offset(value);
    return unknown_or("a number");
  }

  bool string(string_t& value) override {
    if (place_ == Place::dtype) return set_dtype(value);
    if (place_ != Place::metadata_value) return unknown_or("a string");
    header_.metadata[key_] = std::move(value);
    return go_to(Place::metadata);
  }

  bool start_object(std::size_t /*size*/) override {
    if (place_ == Place::start) return go_to(Place::top);
    if (place_ == Place::unknown) return enter_unknown();
    if (place_ != Place::entry) unexpected("an object");
    tensor_ = {};
    fields_ = {};
    return go_to(key_ == kMetadataKey ? Place::metadata : Place::tensor);
  }

  bool end_object() override {
    if (place_ == Place::unknown) return leave_unknown();
    if (place_ == Place::tensor) finish_tensor();
    return go_to(place_ == Place::top ? Place::end : Place::top);
  }

  bool start_array(std::size_t /*size*/) override {
    if (place_ == Place::shape_field) return go_to(Place::shape);
    if (place_ == Place::offsets_field) return go_to(Place::offsets);
    if (place_ == Place::unknown) return enter_unknown();
    unexpected("a list");
  }

  bool end_array() override { return place_ == Place::unknown ? leave_unknown() : go_to(Place::tensor); }

  bool key(string_t& name) override {
    if (place_ == Place::unknown) return true;
    if (place_ != Place::top && place_ != Place::metadata) return start_field(name);
    const bool at_top = place_ == Place::top;
    if (at_top ? !names_.insert(name).second : header_.metadata.contains(name))
      throw_error<CheckpointError>("its header has the key {} twice", shown(name));
    key_ = std::move(name);
    return go_to(at_top ? Place::entry : Place::metadata_value);
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    throw_error<CheckpointError>("its header is not valid JSON: see byte {} of it", position);
  }

 private:
  enum class Place : std::uint8_t {
    start,
    top,
    entry,
    metadata,
    metadata_value,
    tensor,
    dtype,
    shape_field,
    shape,
    offsets_field,
    offsets,
    unknown,  // in the value of a field that the format does not have
    end,
  };

  // Which fields of a tensor have come.
  struct Fields {
    bool dtype = false;
    bool shape = false;
    bool offsets = false;
    int offset_count = 0;
  };

  [[noreturn]] void unexpected(std::string_view what) const {
    throw_error<CheckpointError>("its header has {} where none belongs{}", what,
                                 key_.empty() ? "" : fmt::format(", at the key {}", shown(key_)));
  }
  [[noreturn]] void refuse_tensor(std::string_view what) const {
    throw_error<CheckpointError>("tensor {} has {}", shown(key_), what);
  }

  // Each of these returns true, so that the parser continues.
  bool go_to(Place place) {
    place_ = place;
    return true;
  }

  bool start_field(std::string_view name) {
    if (name == "dtype") return start_field(name, fields_.dtype, Place::dtype);
    if (name == "shape") return start_field(name, fields_.shape, Place::shape_field);
    if (name == "data_offsets") return start_field(name, fields_.offsets, Place::offsets_field);
    return go_to(Place::unknown);
  }

  // A value where only an unknown field may have it.
  bool unknown_or(std::string_view what) {
    if (place_ != Place::unknown) unexpected(what);
    return depth_ > 0 || go_to(Place::tensor);
  }

  bool enter_unknown() {
    if (++depth_ > kDeepest) refuse_tensor(fmt::format("a field nested more than {} deep", kDeepest));
    return true;
  }

  bool leave_unknown() { return --depth_ > 0 || go_to(Place::tensor); }

  bool start_field(std::string_view name, bool& seen, Place place) {
    if (seen) refuse_tensor(fmt::format("the field {} twice", name));
    seen = true;
    return go_to(place);
  }

  bool set_dtype(std::string_view name) {
    const auto* dtype = serialize::safetensors_dtype(name);
    if (dtype == nullptr) refuse_tensor(fmt::format("a dtype that PyTorch does not have: {}", shown(name)));
    tensor_.dtype = dtype->type;
    return go_to(Place::tensor);
  }

  bool add_size(std::uint64_t size) {
    if (!std::in_range<std::int64_t>(size)) refuse_tensor(fmt::format("an impossible size {}", size));
    if (tensor_.shape.size() == kMostDimensions) {
      refuse_tensor(fmt::format("more than {} dimensions", kMostDimensions));
    }
    tensor_.shape.push_back(static_cast<std::int64_t>(size));
    return true;
  }

  bool add_offset(std::uint64_t offset) {
    if (fields_.offset_count == 2) refuse_tensor("more than two data_offsets");
    (fields_.offset_count == 0 ? tensor_.begin : tensor_.end) = offset;
    ++fields_.offset_count;
    return true;
  }

  void finish_tensor() {
    if (!fields_.dtype) refuse_tensor("no dtype");
    if (!fields_.shape) refuse_tensor("no shape");
    if (fields_.offset_count != 2) refuse_tensor("no two data_offsets");
    if (tensor_.end < tensor_.begin) {
      refuse_tensor(fmt::format("data that ends before it starts: [{}, {}]", tensor_.begin, tensor_.end));
    }
    tensor_.name = key_;
    header_.tensors.push_back(std::move(tensor_));
  }

  Header header_;
  Place place_ = Place::start;
  std::unordered_set<std::string> names_;
  std::string key_;
  TensorInfo tensor_;
  Fields fields_;
  int depth_ = 0;  // of the value of an unknown field
};

// The tensors, in their order, and the metadata. Sizes and offsets of tensors remain to be checked.
Header parse_header(const std::string& text) {
  if (!text.starts_with('{'))
    throw CheckpointError("it is not a safetensors file: its header does not start with '{'");
  // Where the parser would stop, as at the end.
  if (text.find('\0') != std::string::npos)
    throw_error<CheckpointError>("its header is not valid JSON: byte {} of it is 0", text.find('\0'));
  HeaderReader reader;
  Json::sax_parse(text, &reader);
  return reader.take();
}

std::uint64_t bytes_of(const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
  // Strides are products of sizes too, an empty one counting as 1: those must not overflow either.
  auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  for (const auto size : shape) {
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) {
      throw_error<CheckpointError>(
          "there is a tensor of impossible shape [{}]",
          fmt::join(shape.begin(), shape.begin() + std::min<std::ptrdiff_t>(std::ssize(shape), 20), ", "));
    }
  }
  return std::ranges::find(shape, 0) == shape.end() ? static_cast<std::uint64_t>(bytes) : 0;
}

constexpr std::uint64_t kLengthSize = 8;

std::uint64_t header_length(const serialize::ByteSource& source) {
  if (source.size() < kLengthSize) {
    throw_error<CheckpointError>(
        "it has {} bytes, too few for a safetensors file; was it copied only in part?", source.size());
  }
  std::uint64_t length = 0;
  std::memcpy(&length, source.read_text(0, kLengthSize).data(), kLengthSize);
  if (length > kLargestHeader) {
    throw_error<CheckpointError>(
        "it is not a safetensors file: its header would have {} bytes, but the limit is {}", length,
        kLargestHeader);
  }
  if (length > source.size() - kLengthSize) {
    throw_error<CheckpointError>(
        "it is cut short, or not a safetensors file: its header should have {} bytes, but {} are left",
        length, source.size() - kLengthSize);
  }
  return length;
}

void check_size(const TensorInfo& tensor) {
  const auto wanted = bytes_of(tensor.shape, tensor.dtype);
  const auto there = tensor.end - tensor.begin;
  if (wanted == there) return;
  throw_error<CheckpointError>("tensor {} of shape [{}] needs {} bytes, but data_offsets gives it {}",
                               shown(tensor.name), fmt::join(tensor.shape, ", "), wanted, there);
}

// One after the other, they fill all of the data.
void check_places(const std::vector<TensorInfo>& tensors, std::uint64_t data_size) {
  std::vector<const TensorInfo*> in_place;
  in_place.reserve(tensors.size());
  for (const auto& tensor : tensors) in_place.push_back(&tensor);
  std::ranges::sort(in_place, [](const TensorInfo* left, const TensorInfo* right) {
    return std::pair(left->begin, left->end) < std::pair(right->begin, right->end);
  });
  std::uint64_t filled = 0;
  for (const auto* tensor : in_place) {
    if (tensor->begin != filled) {
      throw_error<CheckpointError>("the data of tensor {} starts at {} instead of {}: there is {}",
                                   shown(tensor->name), tensor->begin, filled,
                                   tensor->begin < filled ? "an overlap" : "a hole");
    }
    filled = tensor->end;
  }
  if (filled < data_size) {
    throw_error<CheckpointError>(
        "{} bytes at its end belong to no tensor; the header is not that of this file", data_size - filled);
  }
  if (filled > data_size) {
    throw_error<CheckpointError>(
        "it is cut short: the tensors have {} bytes, but the file has {} of them; copy it again", filled,
        data_size);
  }
}

Header checked_header(const serialize::ByteSource& source) {
  const auto length = header_length(source);
  auto header = parse_header(source.read_text(kLengthSize, length));
  header.data_start = kLengthSize + length;
  for (const auto& tensor : header.tensors) check_size(tensor);
  check_places(header.tensors, source.size() - header.data_start);
  return header;
}

std::string quoted(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::type_error&) {
    throw_error<CheckpointError>("{} is not UTF-8, which the format requires", shown(text));
  }
}

std::string entry(const TensorInfo& tensor) {
  return fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", quoted(tensor.name),
                     serialize::find_dtype(tensor.dtype)->safetensors, fmt::join(tensor.shape, ","),
                     tensor.begin, tensor.end);
}

std::string metadata_entry(const Metadata& metadata) {
  std::vector<std::string> pairs;
  for (const auto& [key, value] : metadata) pairs.push_back(quoted(key) + ":" + quoted(value));
  return fmt::format("{}:{{{}}}", quoted(std::string(kMetadataKey)), fmt::join(pairs, ","));
}

}  // namespace

Header read_header(const serialize::ByteSource& source) {
  return with_source(source.name(), [&] { return checked_header(source); });
}

std::string header_text(const std::vector<TensorInfo>& tensors, const Metadata& metadata) {
  constexpr std::size_t alignment = 8;
  std::vector<std::string> entries;
  entries.reserve(tensors.size() + 1);
  if (!metadata.empty()) entries.push_back(metadata_entry(metadata));
  for (const auto& tensor : tensors) entries.push_back(entry(tensor));
  auto text = fmt::format("{{{}}}", fmt::join(entries, ","));
  text.resize((text.size() + alignment - 1) / alignment * alignment, ' ');
  return text;
}

}  // namespace lockstep::safetensors
