// SPDX-License-Identifier: BSD-3-Clause
#include <span>
#include <system_error>

#include <nlohmann/json.hpp>

#include <lockstep/data/images.h>
#include <lockstep/data/subset.h>

#include "base/atomic_file.h"
#include "base/throw_error.h"
#include "data/bytes.h"

namespace lockstep::data {
namespace {

std::string ascii_json(const std::string& name, const std::filesystem::path& file) {
  try {
    return nlohmann::json(name).dump(/*indent=*/-1, ' ', /*ensure_ascii=*/true);
  } catch (const nlohmann::json::exception&) {
    throw_error<ArgumentError>("write_class_indices: {}: the class name \"{}\" is not valid UTF-8",
                               file.string(), name);
  }
}

}  // namespace

void write_class_indices(const std::filesystem::path& file, const std::vector<std::string>& classes) {
  std::string text = "{";
  for (std::size_t i = 0; i < classes.size(); ++i) {
    text += fmt::format("{}\n    \"{}\": {}", i == 0 ? "" : ",", i, ascii_json(classes[i], file));
  }
  text += classes.empty() ? "}" : "\n}";
  try {
    AtomicFile out(file);
    out.write(std::as_bytes(std::span(text)));
    out.commit();
  } catch (const std::system_error& error) {
    throw_error<DataError>("{}: the class indices cannot be written: {}", file.string(),
                           error.code().message());
  }
}

std::vector<std::string> read_class_indices(const std::filesystem::path& file) {
  const auto bytes = read_file(file);
  const auto text = as_bytes(bytes);
  const auto json = nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw_error<DataError>("{}: is not a JSON object of class names by index, such as {{\"0\": \"daisy\"}}",
                           file.string());
  }
  std::vector<std::string> classes;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const auto entry = json.find(std::to_string(i));
    if (entry == json.end() || !entry->is_string()) {
      throw_error<DataError>(
          "{}: has {} entries, but no class name for \"{}\"; the indices should be 0 .. {}", file.string(),
          json.size(), i, json.size() - 1);
    }
    classes.push_back(entry->get<std::string>());
  }
  return classes;
}

}  // namespace lockstep::data
