// SPDX-License-Identifier: BSD-3-Clause
#include "strip_prefix.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::ckpt {
namespace {

// The module itself is "module" in the metadata where its parameters are "module.x".
bool is_module_itself(const std::string& key, const std::string& prefix) { return key + "." == prefix; }

Dict strip_metadata(const Dict& metadata, const std::string& prefix) {
  Dict stripped(metadata.kind());
  for (const auto& [key, value] : metadata) {
    const auto* name = key.get_if<std::string>();
    if (name != nullptr && is_module_itself(*name, prefix)) {
      stripped.set("", value);
    } else if (name != nullptr && name->starts_with(prefix)) {
      stripped.set(name->substr(prefix.size()), value);
    } else {
      stripped.set(key, value);
    }
  }
  return stripped;
}

Dict strip_attributes(const Dict& attributes, const std::string& prefix) {
  auto stripped = attributes;
  auto* metadata = stripped.find("_metadata");
  if (metadata != nullptr && metadata->is<Dict>()) *metadata = strip_metadata(metadata->as_dict(), prefix);
  return stripped;
}

}  // namespace

Stripped strip_prefix(const Dict& dict, const std::string& prefix) {
  Stripped result{.dict = Dict(dict.kind())};
  for (const auto& [key, value] : dict) {
    const auto* name = key.get_if<std::string>();
    const bool renamed = name != nullptr && name->starts_with(prefix);
    auto stripped = renamed ? Value(name->substr(prefix.size())) : key;
    if (result.dict.contains(stripped)) {
      throw CheckpointError(fmt::format("without the prefix {} there would be two entries {}",
                                        repr(Value(prefix), 200), repr(stripped, 200)));
    }
    result.dict.set(std::move(stripped), value);
    if (renamed) ++result.renamed;
  }
  if (!dict.attributes().empty()) result.dict.set_attributes(strip_attributes(dict.attributes(), prefix));
  return result;
}

}  // namespace lockstep::ckpt
