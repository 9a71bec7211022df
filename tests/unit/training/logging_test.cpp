// SPDX-License-Identifier: BSD-3-Clause
#include <csignal>
#include <fstream>
#include <iterator>
#include <limits>
#include <sys/resource.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/training/logging.h>

#include "base/process_state.h"
#include "support/error_of.h"
#include "support/file_text.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

fs::path only_file_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  EXPECT_EQ(files.size(), 1U) << folder;
  return files.at(0);
}

TEST(Loggers, AddACsvColumnForANewName) {
  const TempFolder folder;
  const auto file = folder / "of/a run/log.csv";
  const auto logger = csv_logger(file);
  logger.log(0, {{"loss", 0.1}, {"a,\"b\"", 1e-300}});
  logger.log(1, {{"loss", std::numeric_limits<double>::quiet_NaN()}});
  EXPECT_EQ(text_of(file), "step,\"a,\"\"b\"\"\",loss\n0,1e-300,0.1\n1,,nan\n");
  logger.log(1, {{"val", -1}});
  logger.log(2, {{"loss", 3}, {"val", 4}});
  const std::string whole = "step,\"a,\"\"b\"\"\",loss,val\n0,1e-300,0.1,\n1,,nan,\n1,,,-1\n2,,3,4\n";
  EXPECT_EQ(text_of(file), whole);

  csv_logger(file).log(3, {{"a,\"b\"", 5}});
  EXPECT_EQ(text_of(file), whole + "3,5,,\n");
  csv_logger(file).log(1, {{"loss", 6}});
  EXPECT_EQ(text_of(file), "step,\"a,\"\"b\"\"\",loss,val\n0,1e-300,0.1,\n1,,6,\n");
}

TEST(Loggers, WriteAJsonObjectPerLine) {
  const TempFolder folder;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto logger = json_lines_logger(folder / "log.jsonl");
  logger.log(7, {{"loss", 0.1}, {"\"ä\"", -infinity}});
  logger.log(8, {{"loss", std::numeric_limits<double>::quiet_NaN()}, {"top", infinity}});
  logger.log(9, {});
  EXPECT_EQ(text_of(folder / "log.jsonl"),
            "{\"step\": 7, \"\\\"ä\\\"\": -Infinity, \"loss\": 0.1}\n"
            "{\"step\": 8, \"loss\": NaN, \"top\": Infinity}\n{\"step\": 9}\n");
}

using MakeLogger = std::function<Logger(fs::path)>;

struct FileLogger {
  std::string name;
  MakeLogger make;
};

class FileLoggers : public ::testing::TestWithParam<FileLogger> {
 protected:
  fs::path file() const { return folder_ / "log.txt"; }
  Logger logger() const { return GetParam().make(file()); }
  void log(std::int64_t first, std::int64_t last) const {
    const auto made = logger();
    for (auto step = first; step < last; ++step) made.log(step, {{"x", static_cast<double>(step) / 2}});
  }
  TempFolder folder_;
};

const auto kFileLoggers =
    ::testing::Values(FileLogger{"csv", [](fs::path file) { return csv_logger(std::move(file)); }},
                      FileLogger{"json", [](fs::path file) { return json_lines_logger(std::move(file)); }});
INSTANTIATE_TEST_SUITE_P(Kinds, FileLoggers, kFileLoggers,
                         [](const auto& tested) { return tested.param.name; });

TEST_P(FileLoggers, ContinueAtTheirFirstStep) {
  log(0, 20);
  const auto whole = text_of(file());
  log(12, 20);
  EXPECT_EQ(text_of(file()), whole);
  std::ofstream(file(), std::ios::app) << whole.substr(whole.size() - 5, 3);
  log(20, 21);
  const auto longer = text_of(file());
  EXPECT_TRUE(longer.starts_with(whole));
  log(0, 20);
  EXPECT_EQ(text_of(file()), whole) << "a run that starts anew";
}

TEST_P(FileLoggers, RefuseAFileOfAnotherKind) {
  std::ofstream(file()) << "step\nvalues\n";
  EXPECT_THAT(error_of([&] { log(0, 1); }), HasSubstr("log.txt cannot be continued"));
  EXPECT_EQ(text_of(file()), "step\nvalues\n");
  std::ofstream(file()) << "one line without an end";
  EXPECT_THAT(error_of([&] { log(0, 1); }), HasSubstr("log.txt cannot be continued: it has no whole line"));
  EXPECT_EQ(text_of(file()), "one line without an end");
  EXPECT_THAT(error_of<ArgumentError>([&] {
                GetParam().make(folder_ / "new").log(0, {{"a\nb", 1}});
              }),
              HasSubstr(R"("a\nb")"));
}

TEST_P(FileLoggers, NameTheFileThatCannotBeWritten) {
  std::ofstream(folder_ / "file") << "";
  EXPECT_THAT(error_of([&] { GetParam().make(folder_ / "file/log").log(0, {}); }),
              MatchesRegex(".*/file/log cannot be written: .*/file: File exists"));
}

// With a limit as on a full disk.
std::string error_at_most(rlim_t bytes, const std::function<void()>& action) {
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit{bytes, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  const auto error = error_of(action);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  return error;
}

TEST_P(FileLoggers, EndWithAWholeRecordOnAFullDisk) {
  const auto made = logger();
  made.log(0, {{"x", 0.5}});
  const auto whole = text_of(file());
  EXPECT_THAT(error_at_most(whole.size() + 3,
                            [&] {
                              made.log(1, {{"x", 1.5}});
                            }),
              MatchesRegex(".*/log.txt cannot be written: File too large .`ulimit -f` allows .* raise it."));
  EXPECT_EQ(text_of(file()), whole);
  EXPECT_THAT(error_at_most(3, [&] { made.log(1, {{"x", 1.5}, {"y", 1.5}}); }), HasSubstr("File too large"));
  EXPECT_EQ(text_of(file()), whole);
  made.log(1, {{"x", 1.5}});
  EXPECT_EQ(text_of(file()), whole + (GetParam().name == "csv" ? "1,1.5\n" : "{\"step\": 1, \"x\": 1.5}\n"));
}

TEST_P(FileLoggers, TakeRecordsFromSeveralThreads) {
  const auto made = logger();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&made] {
      for (int step = 0; step < 100; ++step) made.log(step, {{"x", 0.25}});
    });
  }
  for (auto& thread : threads) thread.join();
  const auto text = text_of(file());
  EXPECT_EQ(std::ranges::count(text, '\n'), GetParam().name == "csv" ? 401 : 400);
}

// As on that rank of two.
void as_rank(int rank, const std::function<void()>& action) {
  set_current_world({.rank = rank, .size = 2});
  action();
  set_current_world({});
}

TEST(Loggers, WriteOnTheMainRankOrOnEveryOne) {
  const TempFolder folder;
  for (const int rank : {0, 1}) {
    as_rank(rank, [&] {
      csv_logger(folder / "main.csv").log(0, {{"rank", rank}});
      csv_logger(folder / "a.b.csv", {.every_rank = true}).log(0, {{"rank", rank}});
      tensorboard_logger(folder / "events", {.every_rank = true}).log(0, {{"rank", rank}});
      ::testing::internal::CaptureStdout();
      console_logger().log(3, {{"loss", 1.0 / 3}, {"accuracy", 1}});
      console_logger({.every_rank = true}).log(4, {{"loss", 2}});
      const auto all = "rank " + std::to_string(rank) + ", step 4: loss 2\n";
      EXPECT_EQ(::testing::internal::GetCapturedStdout(),
                rank == 0 ? "step 3: accuracy 1, loss 0.333333\n" + all : all);
    });
  }
  EXPECT_EQ(text_of(folder / "main.csv"), "step,rank\n0,0\n");
  EXPECT_EQ(text_of(folder / "a.b.rank0.csv"), "step,rank\n0,0\n");
  EXPECT_EQ(text_of(folder / "a.b.rank1.csv"), "step,rank\n0,1\n");
  only_file_in(folder / "events/rank0");
  only_file_in(folder / "events/rank1");
}

TEST(Loggers, MayBeAnyFunction) {
  std::string text;
  const Logger logger([&](std::int64_t step, const Scalars& scalars) {
    text += std::to_string(step) + scalars.begin()->first;
  });
  logger.log(5, {{"a", 1}});
  EXPECT_EQ(text, "5a");
}

TEST(Loggers, WriteEventsInADatedFolderByDefault) {
  const TempFolder folder;
  const auto before = fs::current_path();
  fs::current_path(folder.path());
  const SummaryWriter writer({}, {.comment = "_LR", .filename_suffix = ".end"});
  fs::current_path(before);
  EXPECT_THAT(writer.get_logdir().string(), MatchesRegex("runs/[A-Z][a-z]+[0-9]+_..-..-.._.+_LR"));
  EXPECT_THAT(only_file_in(folder / writer.get_logdir()).filename().string(),
              MatchesRegex(R"(events\.out\.tfevents\.[0-9]+\..*\.end)"));
}

TEST(Loggers, EndWithAWholeEventOnAFullDisk) {
  const TempFolder folder;
  SummaryWriter writer(folder / "run");
  const auto file = only_file_in(folder / "run");
  const auto whole = text_of(file);
  EXPECT_THAT(error_at_most(whole.size() + 20, [&] { writer.add_scalar("loss", 1); }),
              HasSubstr(file.string() + " cannot be written: File too large"));
  EXPECT_EQ(text_of(file), whole);
  SummaryWriter copy = writer;
  copy.add_scalar("loss", at::scalar_tensor(1));
  EXPECT_GT(text_of(file).size(), whole.size());
  writer.flush();
  writer.close();
  EXPECT_EQ(error_of([&] { copy.add_text("after", "close"); }), "");
}

TEST(Loggers, CheckTheArgumentsOfSummaryWriter) {
  const TempFolder folder;
  SummaryWriter writer(folder / "run");
  EXPECT_THAT(error_of([&] { writer.add_scalar("loss", at::ones({2})); }),
              HasSubstr("'loss' is not a real number; give a tensor of one element"));
  const auto whole = text_of(only_file_in(folder / "run"));
  const auto values = torch::tensor({1.0, std::numeric_limits<double>::infinity()});
  const auto histogram = [&](const at::Tensor& tensor, const HistogramBins& bins) {
    return error_of<ArgumentError>([&] { writer.add_histogram("x", tensor, 0, bins); });
  };
  EXPECT_THAT(histogram(torch::empty({0}), "auto"), HasSubstr("no values"));
  EXPECT_THAT(histogram(values, "auto"), HasSubstr("from 1 to inf"));
  EXPECT_THAT(histogram(values, std::int64_t{3}), HasSubstr("from 1 to inf"));
  EXPECT_THAT(histogram(torch::ones({2}), "stone"), HasSubstr("not stone"));
  EXPECT_THAT(histogram(torch::ones({2}), std::int64_t{0}), HasSubstr("not 0"));
  EXPECT_THAT(histogram(torch::ones({2}), std::vector<double>{2, 3}), HasSubstr("from 2 to 3"));
  EXPECT_THAT(histogram(torch::ones({2}), std::vector<double>{3, 2}), HasSubstr("ascending"));
  const auto image = [&](const at::Tensor& tensor, const std::string& formats) {
    return error_of<ArgumentError>([&] { writer.add_image("x", tensor, 0, {}, formats); });
  };
  EXPECT_THAT(image(torch::ones({3, 4}), "CHW"), HasSubstr("[3, 4] does not fit the dataformats CHW"));
  EXPECT_THAT(image(torch::ones({3, 4, 5}), "CHH"), HasSubstr("CHH"));
  EXPECT_THAT(image(torch::ones({5, 4, 5}), "CHW"), HasSubstr("1 to 4 channels"));
  EXPECT_THAT(image(torch::ones({2, 4, 5, 5}), "NCHW"), HasSubstr("in a batch 1 or 3"));
  const auto hparams = [&](const Dict& values_of, const Dict& domains) {
    return error_of<ArgumentError>([&] { writer.add_hparams(values_of, {}, domains); });
  };
  EXPECT_THAT(hparams({{"lr", List{1}}}, {}), HasSubstr("lr should be a bool"));
  EXPECT_THAT(hparams({{1, 1}}, {}), HasSubstr("type str, not 1"));
  EXPECT_THAT(hparams({{"lr", 1}}, {{"lr", List{"a"}}}), HasSubstr("'a' for lr, which is of type int"));
  EXPECT_THAT(hparams({{"lr", 1}}, {{"lr", 2}}), HasSubstr("no list for lr"));
  EXPECT_THAT(hparams({}, {{"lr", List{2}}}), HasSubstr("lr, which hparam_dict lacks"));
  EXPECT_EQ(text_of(only_file_in(folder / "run")), whole) << "nothing is written";
}

}  // namespace
}  // namespace lockstep::testing
