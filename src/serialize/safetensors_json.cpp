// SPDX-License-Identifier: BSD-3-Clause
#include <cstdint>
#include <unordered_set>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "serialize/dtypes.h"
#include "serialize/errors.h"
#include "serialize/safetensors_header.h"

namespace lockstep::safetensors {
namespace {

using Json = nlohmann::json;

// More than any tensor has; PyTorch computes with fewer.
constexpr std::size_t kMostDimensions = 1000;

// Takes the events of the parser and refuses what does not belong where it comes, so that neither depth nor
// size of a strange header is ever built up.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  Header take() { return std::move(header_); }

  bool null() override { unexpected("null"); }
  bool boolean(bool /*value*/) override { unexpected("a bool"); }
  bool number_integer(number_integer_t /*value*/) override { unexpected("a negative number"); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    unexpected("a number that is not a 64-bit integer");
  }
  bool binary(binary_t& /*value*/) override { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      add_size(value);
    } else if (place_ == Place::offsets) {
      add_offset(value);
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata_value) {
      header_.metadata[key_] = std::move(value);
      place_ = Place::metadata;
    } else if (place_ == Place::dtype) {
      set_dtype(value);
      place_ = Place::tensor;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool start_object(std::size_t /*size*/) override {
    if (place_ == Place::start) {
      place_ = Place::top;
    } else if (place_ == Place::entry) {
      place_ = key_ == kMetadataKey ? Place::metadata : Place::tensor;
      tensor_ = {};
      fields_ = {};
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) finish_tensor();
    place_ = place_ == Place::top ? Place::end : Place::top;
    return true;
  }

  bool start_array(std::size_t /*size*/) override {
    if (place_ == Place::shape_field) {
      place_ = Place::shape;
    } else if (place_ == Place::offsets_field) {
      place_ = Place::offsets;
    } else {
      unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }

  bool key(string_t& name) override {
    if (place_ == Place::top) {
      if (!names_.insert(name).second) twice(name);
      key_ = std::move(name);
      place_ = Place::entry;
    } else if (place_ == Place::metadata) {
      if (header_.metadata.contains(name)) twice(name);
      key_ = std::move(name);
      place_ = Place::metadata_value;
    } else {
      start_field(name);
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    throw_error("its header is not valid JSON: see byte {} of it", position);
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
    throw_error("its header has {} where none belongs{}", what, near());
  }
  [[noreturn]] static void twice(std::string_view name) {
    throw_error("its header has the key {} twice", shown(name));
  }
  [[noreturn]] void refuse_tensor(std::string_view what) const {
    throw_error("tensor {} has {}", shown(key_), what);
  }
  std::string near() const { return key_.empty() ? "" : fmt::format(", at the key {}", shown(key_)); }

  void start_field(const std::string& name) {
    if (name == "dtype") {
      start_field(name, fields_.dtype, Place::dtype);
    } else if (name == "shape") {
      start_field(name, fields_.shape, Place::shape_field);
    } else if (name == "data_offsets") {
      start_field(name, fields_.offsets, Place::offsets_field);
    } else {
      refuse_tensor(fmt::format("an unknown field {}", shown(name)));
    }
  }

  void start_field(std::string_view name, bool& seen, Place place) {
    if (seen) refuse_tensor(fmt::format("the field {} twice", name));
    seen = true;
    place_ = place;
  }

  void set_dtype(std::string_view name) {
    const auto* dtype = serialize::safetensors_dtype(name);
    if (dtype == nullptr) refuse_tensor(fmt::format("a dtype that PyTorch does not have: {}", shown(name)));
    tensor_.dtype = dtype->type;
  }

  void add_size(std::uint64_t size) {
    if (!std::in_range<std::int64_t>(size)) refuse_tensor(fmt::format("an impossible size {}", size));
    if (tensor_.shape.size() == kMostDimensions) {
      refuse_tensor(fmt::format("more than {} dimensions", kMostDimensions));
    }
    tensor_.shape.push_back(static_cast<std::int64_t>(size));
  }

  void add_offset(std::uint64_t offset) {
    if (fields_.offset_count == 2) refuse_tensor("more than two data_offsets");
    (fields_.offset_count == 0 ? tensor_.begin : tensor_.end) = offset;
    ++fields_.offset_count;
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
};

std::string quoted(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::type_error&) {
    throw_error("{} is not UTF-8, which the format requires", shown(text));
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

Header parse_header(const std::string& text) {
  if (!text.starts_with('{'))
    throw CheckpointError("it is not a safetensors file: its header does not start with '{'");
  // Where the parser would stop, as at the end.
  if (text.find('\0') != std::string::npos)
    throw_error("its header is not valid JSON: byte {} of it is 0", text.find('\0'));
  HeaderReader reader;
  Json::sax_parse(text, &reader);
  return reader.take();
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
