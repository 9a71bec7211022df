// SPDX-License-Identifier: BSD-3-Clause
#include "multiprocess/mistakes.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <regex>
#include <sys/resource.h>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace lockstep::testing {
namespace {

constexpr std::ptrdiff_t kMostLines = 15;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

bool failed(const RankResult& result) { return result.exit_code != 0; }

std::string shown(const std::vector<RankResult>& results) {
  std::string text;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    text += fmt::format("---- rank {}, exit code {}, signal {}{}:\n{}", rank, results[rank].exit_code,
                        results[rank].signal, results[rank].timed_out ? ", killed by the watchdog" : "",
                        results[rank].err);
  }
  return text;
}

// What is wrong with the reports, a line each.
class Faults {
 public:
  explicit Faults(std::string subject) : subject_(std::move(subject)) {}

  void expect(bool holds, const std::string& fault) {
    if (!holds) text_ += fmt::format("{}: {}\n", subject_, fault);
  }
  void expect_texts(const std::string& err, const std::vector<std::string>& texts) {
    for (const auto& text : texts) expect(err.find(text) != std::string::npos, "no \"" + text + "\"");
  }
  const std::string& text() const { return text_; }

 private:
  std::string subject_;
  std::string text_;
};

std::string faults_of(const Reported& reported, const RankResult& result, std::size_t rank,
                      const std::string& file) {
  const auto own = rank == 0 ? reported.on_rank0 : rank == 1 ? reported.on_rank1 : std::vector<std::string>{};
  const auto& err = result.err;
  Faults faults(fmt::format("rank {}", rank));
  faults.expect(!result.timed_out, "killed by the watchdog");
  faults.expect(std::ranges::count(err, '\n') <= kMostLines, "more than 15 lines");
  for (const char* stack : {"frame #", "Exception raised from", "C++ CapturedTraceback", "libtorch"})
    faults.expect(err.find(stack) == std::string::npos, "a C++ stack");
  faults.expect_texts(err, reported.on_all);
  faults.expect_texts(err, own);
  const bool speaks = !reported.on_all.empty() || !own.empty();
  if (speaks &&
      std::regex_search(err, std::regex(file + ":[0-9]+")) != (reported.place == Place::source_line))
    faults.expect(false, reported.place == Place::none ? "a line of " + file : "no line of " + file);
  static const std::regex kLine("([A-Za-z_0-9]+[.](cpp|h)):[0-9]+");
  for (std::sregex_iterator line(err.begin(), err.end(), kLine), end; line != end; ++line)
    faults.expect((*line)[1] == file, "a line of " + (*line)[1].str());
  static const std::regex kTwoPlaces(
      "[.](cpp|h):[0-9]+[^\n]*[(]at ");  // a text that names a line gets no other
  faults.expect(!std::regex_search(err, kTwoPlaces), "two places in one line");
  faults.expect(result.out.find(reported.printed) != std::string::npos, "lost what it had printed");
  const bool renamed = reported.rank_env.contains(static_cast<int>(rank));
  if (failed(result) && !renamed)
    faults.expect(std::regex_search(err, std::regex(fmt::format("rank {0}|RANK={0}", rank))), "no rank");
  return faults.text();
}

std::string faults_of(const Reported& reported, const std::vector<RankResult>& results,
                      const std::string& file) {
  std::string text, all;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    text += faults_of(reported, results[rank], rank, file);
    all += results[rank].err;
  }
  Faults faults("all ranks");
  faults.expect(std::ranges::any_of(results, failed) == (reported.ending == Ending::fails), "another ending");
  for (const auto& once : reported.once) faults.expect(count(all, once) == 1, "not once \"" + once + "\"");
  return text + faults.text();
}

struct Row {
  Scenario program;
  Reported reported;
  std::string file;
};

// By the names of the tests.
std::map<std::string, Row>& all_rows() {
  static std::map<std::string, Row> all;
  return all;
}

// Runs the rows of this call of the program, several at a time: a row waits for most of its time.
class Runs {
 public:
  using Results = std::vector<RankResult>;

  explicit Runs(const ::testing::TestSuite& suite) {
    for (int i = 0; i < suite.total_test_count(); ++i) {
      const auto& test = *suite.GetTestInfo(i);
      if (test.should_run()) results_[names_.emplace_back(test.name())];
    }
    for (int i = 0; i < kAtATime; ++i) workers_.emplace_back([this] { work(); });
  }

  Results results_of(const std::string& name) { return results_.at(name).get_future().get(); }

 private:
  static constexpr int kAtATime = 4;

  void work() {
    for (auto next = next_++; next < names_.size(); next = next_++) {
      const auto& [program, reported, file] = all_rows().at(names_[next]);
      auto& result = results_.at(names_[next]);
      try {
        result.set_value(run_ranks(
            program,
            {.world_size = reported.world_size, .env = reported.env, .rank_env = reported.rank_env}));
      } catch (...) {
        result.set_exception(std::current_exception());
      }
    }
  }

  std::vector<std::string> names_;
  std::map<std::string, std::promise<Results>> results_;
  std::atomic<std::size_t> next_{0};
  std::vector<std::jthread> workers_;
};

class MistakeTest : public ::testing::Test {
 public:
  explicit MistakeTest(std::string name) : name_(std::move(name)) {}

  static void SetUpTestSuite() { runs_.emplace(*::testing::UnitTest::GetInstance()->current_test_suite()); }
  static void TearDownTestSuite() { runs_.reset(); }

  void TestBody() override {
    const auto results = runs_->results_of(name_);
    const auto& row = all_rows().at(name_);
    EXPECT_EQ(faults_of(row.reported, results, row.file), "") << shown(results);
  }

 private:
  static inline std::optional<Runs> runs_;

  std::string name_;
};

void run_without_core_dump(const std::function<void()>& program) {
  const rlimit none{};
  ::setrlimit(RLIMIT_CORE, &none);
  program();
}

}  // namespace

Mistake::Mistake(std::string name, Reported reported, std::function<void()> program,
                 std::source_location where) {
  const Scenario scenario(
      "mistake: " + name, [program = std::move(program)] { run_without_core_dump(program); },
      Thrown::leaves_main);
  const auto file = std::filesystem::path(where.file_name()).filename().string();
  all_rows().emplace(name, Row{scenario, std::move(reported), file});
  ::testing::RegisterTest("Mistakes", name.c_str(), nullptr, nullptr, where.file_name(),
                          static_cast<int>(where.line()), [name] { return new MistakeTest(name); });
}

}  // namespace lockstep::testing
