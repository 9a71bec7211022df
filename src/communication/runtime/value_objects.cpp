// SPDX-License-Identifier: BSD-3-Clause

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include <lockstep/base/error.h>
#include <lockstep/runtime/collectives.h>
#include <lockstep/runtime/default_group.h>
#include <lockstep/serialize/torch_file.h>

#include "base/throw_error.h"

namespace lockstep {
namespace {

constexpr char kValue = 'v', kError = 'e';

// An error of saving is sent, so that no rank waits for a value that does not come.
std::string packed(const Value& value) {
  try {
    return kValue + save_bytes(value);
  } catch (const std::exception& error) {
    return kError + std::string(error.what());
  }
}
std::vector<std::string> packed(const std::vector<Value>& values) {
  std::vector<std::string> all;
  for (const auto& value : values) all.push_back(packed(value));
  return all;
}

Value unpacked(const std::string& text) {
  if (text.empty())
    throw CheckpointError(
        "an object of another rank is no Value; all ranks have to pass the same type of list");
  const auto content = std::string_view(text).substr(1);
  if (text.front() == kError) throw_error<CheckpointError>("an object cannot be sent: {}", content);
  return load_bytes(content, {}, "the object of another rank");
}
std::vector<Value> unpacked(const std::vector<std::string>& texts) {
  std::vector<Value> all;
  for (const auto& text : texts) all.push_back(unpacked(text));
  return all;
}

// The function for strings has said so, and done nothing.
bool is_outside(const CollectiveOptions& options) { return options.group && !*options.group; }

}  // namespace

void all_gather_object(std::vector<Value>& object_list, const Value& obj, const CollectiveOptions& options,
                       std::source_location where) {
  std::vector<std::string> texts;
  all_gather_object(texts, packed(obj), options, where);
  if (!is_outside(options)) object_list = unpacked(texts);
}

void broadcast_object_list(std::vector<Value>& object_list, int src, const CollectiveOptions& options,
                           std::source_location where) {
  std::vector<std::string> texts(object_list.size());
  if (get_rank() == src) texts = packed(object_list);
  broadcast_object_list(texts, src, options, where);
  if (is_outside(options)) return;
  auto received = unpacked(texts);  // on `src`, too, for its error
  if (get_rank() != src) object_list = std::move(received);
}

void gather_object(const Value& obj, std::vector<Value>& object_gather_list, int dst,
                   const CollectiveOptions& options, std::source_location where) {
  std::vector<std::string> texts;
  gather_object(packed(obj), texts, dst, options, where);
  if (!is_outside(options)) object_gather_list = unpacked(texts);
}

void scatter_object_list(std::vector<Value>& scatter_object_output_list,
                         const std::vector<Value>& scatter_object_input_list, int src,
                         const CollectiveOptions& options, std::source_location where) {
  std::vector<std::string> texts;
  scatter_object_list(texts, packed(scatter_object_input_list), src, options, where);
  if (!is_outside(options)) scatter_object_output_list = unpacked(texts);
}

}  // namespace lockstep
