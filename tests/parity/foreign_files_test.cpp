// SPDX-License-Identifier: BSD-3-Clause
// Odd files beside Python's libraries: equal values, or both refuse, or docs/foreign-files.md lists it.
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/data/files.h>
#include <lockstep/data/images.h>
#include <lockstep/data/vision.h>
#include <lockstep/data/web_dataset.h>
#include <lockstep/serialize/safetensors.h>
#include <lockstep/serialize/torch_file.h>

#include "parity/foreign_values.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

using Fields = std::vector<std::string>;

Fields split(const std::string& line, char separator) {
  Fields fields(1);
  for (const char c : line) {
    if (c == separator) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

std::vector<std::string> lines_of(const fs::path& file) {
  std::ifstream stream(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// `reduced`: to 8 bits per channel, as PIL has them.
Value picture(const fs::path& file, bool reduced, bool turned) {
  return data::read_image(
      file, {.mode = data::ImageReadMode::RGB, .eight_bits = reduced, .apply_exif_orientation = turned});
}

// The class of each sample, and its path in the folder.
Value samples(const fs::path& root) {
  const data::DatasetFolder folder(root, [](const fs::path& /*file*/) { return at::Tensor(); },
                                   {.allow_empty = true});
  List classes;
  for (const auto& name : folder.classes()) classes.items.emplace_back(Bytes{.data = name});
  List files;
  const auto targets = folder.targets();
  for (std::int64_t i = 0; i < folder.size(); ++i) {
    files.items.emplace_back(Tuple{Bytes{.data = fs::path(folder.path(i)).lexically_relative(root).string()},
                                   targets[i].item<std::int64_t>()});
  }
  return Tuple{std::move(classes), std::move(files)};
}

Value array(const fs::path& file) { return data::load_numpy(file).contiguous(); }

Value arrays(const fs::path& file) {
  Dict dict;
  for (const auto& [name, values] : data::load_npz(file)) dict.set(name, values);
  return dict;
}

// The tensors in the order of their names: Python's package does not keep the header's.
Value sorted_by_name(const Dict& tensors) {
  std::map<std::string, at::Tensor> sorted;
  for (const auto& [name, tensor] : tensors) sorted.emplace(name.as_string(), tensor.as_tensor());
  Dict dict;
  for (const auto& [name, tensor] : sorted) dict.set(name, tensor);
  return dict;
}

// The name and the fields of each sample.
Value archive(const fs::path& file) {
  const data::WebDataset dataset(std::vector<fs::path>{file});
  List found;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    const auto sample = dataset.sample(i);
    Dict fields;
    for (const auto& [name, bytes] : sample.fields) {
      const auto* begin = reinterpret_cast<const char*>(bytes.const_data_ptr<std::uint8_t>());
      fields.set(name, Bytes{.data = std::string(begin, bytes.nbytes())});
    }
    found.items.emplace_back(Tuple{Bytes{.data = sample.key}, std::move(fields)});
  }
  return found;
}

using Reader = std::function<Value(const fs::path&)>;

const Reader& reader(const std::string& how) {
  static const std::map<std::string, Reader> readers = {
      {"picture", [](const fs::path& file) { return picture(file, true, false); }},
      {"picture of all bits", [](const fs::path& file) { return picture(file, false, false); }},
      {"turned picture", [](const fs::path& file) { return picture(file, true, true); }},
      {"class folders", samples},
      {"array", array},
      {"archive of arrays", arrays},
      {"tar archive", archive},
      {"safetensors", [](const fs::path& file) { return sorted_by_name(safetensors::load_file(file)); }},
      {"checkpoint", [](const fs::path& file) { return load(file); }},
  };
  return readers.at(how);
}

// A file, and what a library of Python reads from it.
struct Case {
  std::string kind;
  std::string library;
  std::string how;
  std::string path;
  std::string outcome;

  explicit Case(const Fields& fields)
      : kind(fields.at(0)),
        library(fields.at(1)),
        how(fields.at(2)),
        path(fields.at(3)),
        outcome(fields.at(4)) {}
};

struct Difference {
  std::string kind;
  std::string library;
  std::string what;
  auto operator<=>(const Difference&) const = default;
  friend void PrintTo(const Difference& self, std::ostream* out) {
    *out << "| " << self.kind << " | " << self.library << " | " << self.what << " |";
  }
};

// "=" and the value, or "!" and the error. An exception of another type fails the test.
std::string outcome_here(const Case& given, const fs::path& folder) {
  try {
    return "=" + described(reader(given.how)(folder / given.path));
  } catch (const Error& error) {
    return std::string("!") + error.what();
  }
}

std::optional<std::string> difference(const std::string& python, const std::string& here) {
  const bool reads = here.starts_with('=');
  if (python.starts_with('=') != reads) return reads ? "only Lockstep reads it" : "only Python reads it";
  if (reads && python != here) return "other values";
  return std::nullopt;
}

std::string shortened(const std::string& text) {
  constexpr std::size_t kShown = 300;
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

class ForeignFiles : public ::testing::Test {
 protected:
  ForeignFiles() {
    run_python("parity/foreign_files.py", {.args = {folder_.path().string()}});
    for (const auto& line : lines_of(folder_ / "cases.txt")) cases_.emplace_back(split(line, '\t'));
  }

  // The first three columns of the table.
  static std::set<Difference> listed() {
    std::set<Difference> found;
    for (const auto& line : lines_of(LOCKSTEP_FOREIGN_FILES_PAGE)) {
      auto cells = split(line, '|');
      if (cells.size() != 6 || cells[1].starts_with("--") || cells[1] == " file ") continue;
      for (auto& cell : cells) {
        if (cell.size() > 1) cell = cell.substr(1, cell.size() - 2);
      }
      EXPECT_FALSE(cells[4].empty()) << line;
      EXPECT_TRUE(found.insert({cells[1], cells[2], cells[3]}).second) << line;
    }
    return found;
  }

  TempFolder folder_;
  std::vector<Case> cases_;
};

TEST_F(ForeignFiles, AreReadAsPythonReadsThemOrListed) {
  const auto expected = listed();
  std::set<Difference> found;
  std::set<std::string> files;
  for (const auto& each : cases_) {
    files.insert(each.path);
    const auto here = outcome_here(each, folder_.path());
    const auto what = difference(each.outcome, here);
    const Difference row{each.kind, each.library, what.value_or("")};
    if (what) found.insert(row);
    EXPECT_TRUE(!what || expected.contains(row))
        << ::testing::PrintToString(row) << "\n  " << each.path << "\n  Python: " << shortened(each.outcome)
        << "\n  here:   " << shortened(here);
  }
  EXPECT_GT(files.size(), 300);
  for (const auto& row : expected) {
    EXPECT_TRUE(found.contains(row)) << "docs/foreign-files.md lists what does not differ: "
                                     << ::testing::PrintToString(row);
  }
}

}  // namespace
}  // namespace lockstep::testing
