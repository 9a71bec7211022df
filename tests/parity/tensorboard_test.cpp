// SPDX-License-Identifier: BSD-3-Clause
// Event files that TensorBoard reads, and the logs of a process that is killed.
#include <csignal>
#include <fstream>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/serialize/torch_file.h>
#include <lockstep/training/logging.h>

#include "base/unique_fd.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

constexpr double kTime = 1234.5;
const std::vector<HistogramBins> kBins{"tensorflow",
                                       "auto",
                                       "doane",
                                       "fd",
                                       "rice",
                                       "scott",
                                       "sqrt",
                                       "sturges",
                                       std::int64_t{1},
                                       std::int64_t{10},
                                       std::vector<double>{-1, 0, 0.5, 3}};

Dict make_inputs() {
  torch::manual_seed(5);
  auto wild = torch::randn({50});
  wild[3] = 1e30;
  const Dict images{{"CHW float", torch::rand({3, 7, 5}) * 1.4 - 0.2},
                    {"HWC uint8", torch::randint(256, {4, 6, 3}, torch::kByte)},
                    {"HW half", torch::rand({5, 4}).to(torch::kHalf)},
                    {"WH int", torch::randint(2, {5, 4}, torch::kInt)},
                    {"CHW gray", torch::rand({1, 3, 4})},
                    {"chw alpha", torch::rand({4, 3, 4})},
                    {"NCHW", torch::rand({11, 3, 4, 5})},
                    {"NHWC gray", torch::randint(256, {3, 4, 5, 1}, torch::kByte)}};
  return {{"scalars", torch::randn({5})},
          {"normal", torch::randn({40, 30})},
          {"integers", torch::randint(-5, 300, {200}, torch::kInt)},
          {"peaked", torch::cat({torch::zeros({90}), torch::linspace(0, 1, 10)})},
          {"constant", torch::full({3}, 0.25)},
          {"half", torch::randn({64}).to(torch::kHalf)},
          {"wild", wild},
          {"images", images}};
}

void write_histograms(SummaryWriter& writer, const Dict& inputs) {
  for (const std::string name : {"normal", "integers", "peaked", "constant", "half", "wild"}) {
    for (std::size_t number = 0; number < (name == "wild" ? 1 : kBins.size()); ++number) {
      writer.add_histogram(name + "/" + std::to_string(number), inputs.at(name).as_tensor(),
                           static_cast<std::int64_t>(number), kBins[number], kTime);
    }
  }
  const auto& normal = inputs.at("normal").as_tensor();
  for (const int most : {1, 7, 100, 10000}) {
    writer.add_histogram("at most " + std::to_string(most), normal, 1, "tensorflow", kTime, most);
    writer.add_histogram("of 50 at most " + std::to_string(most), normal, 1, 50, kTime, most);
  }
}

void write_events(const std::filesystem::path& folder, const Dict& inputs) {
  SummaryWriter writer(folder, {.filename_suffix = ".end"});
  const auto& scalars = inputs.at("scalars").as_tensor();
  for (int step = 0; step < scalars.numel(); ++step) {
    writer.add_scalar("loss", scalars[step].item<double>(), step, kTime + step);
  }
  writer.add_scalar("now/and without a step", 2);
  writer.add_scalar("negative", 1, -7, kTime);
  writer.add_scalars("rates/of", {{"a", 1}, {"b/c", 2}}, 3, kTime);
  writer.add_scalars("rates/of", {{"a", 3}}, 4);
  write_histograms(writer, inputs);
  const auto& images = inputs.at("images").as_dict();
  for (const auto& [key, image] : images) {
    const auto& name = key.as_string();
    writer.add_image(name, image.as_tensor(), 5, kTime, name.substr(0, name.find(' ')));
  }
  writer.add_image("default", images.at("CHW float").as_tensor());
  writer.add_images("batch", images.at("NCHW").as_tensor(), 6);
  writer.add_text("text", "two\n**lines** äöü", 7, kTime);
  writer.add_hparams({{"lr", 0.1},
                      {"bsize", 32},
                      {"net", "resnet"},
                      {"bias", true},
                      {"none", None()},
                      {"decay", torch::tensor({0.5})}},
                     {{"hparam/accuracy", 0.75}, {"hparam/loss", 0.25}},
                     {{"lr", List{0.1, 0.2}}, {"net", List{"resnet", "vit"}}, {"bias", List{false, true}}},
                     "run", 9);
  writer.close();
  SummaryWriter(folder, {.purge_step = 2}).add_scalar("loss", 100, 2, kTime);
}

TEST(TrainingOutput, TensorBoardReadsTheSameAsOfPython) {
  const TempFolder folder;
  const auto inputs = make_inputs();
  save(inputs, folder.file("inputs.pt"), {.sync = false});
  write_events(folder / "cpp", inputs);
  run_python("parity/tensorboard_events.py", {.args = {"calls", folder.path().string()}});
}

TEST(TrainingOutput, TensorBoardShowsEachStepOfAContinuedRunOnce) {
  const TempFolder folder;
  for (const std::int64_t first : {0, 4}) {
    const auto logger = tensorboard_logger(folder / "run");
    for (auto step = first; step < first + 6; ++step)
      logger.log(step, {{"loss", static_cast<double>(first)}});
  }
  EXPECT_EQ(run_python("parity/tensorboard_events.py", {.args = {"scalars", folder.file("run")}}),
            "loss 0 0.0\nloss 1 0.0\nloss 2 0.0\nloss 3 0.0\nloss 4 4.0\nloss 5 4.0\nloss 6 4.0\nloss 7 4.0\n"
            "loss 8 4.0\nloss 9 4.0\n");
}

// Logs step after step, and tells each step when all loggers have returned.
[[noreturn]] void log_until_killed(const TempFolder& folder, int told) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::vector<Logger> loggers{csv_logger(folder / "log.csv"), json_lines_logger(folder / "log.jsonl"),
                                    tensorboard_logger(folder / "events")};
  for (std::int64_t step = 0;; ++step) {
    for (const auto& logger : loggers) logger.log(step, {{"loss", static_cast<double>(step)}});
    if (::write(told, &step, sizeof(step)) != sizeof(step)) ::_exit(1);
  }
}

std::int64_t kill_a_logging_process(const TempFolder& folder) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = ::fork();
  if (child == 0) log_until_killed(folder, ends[1]);
  ::close(ends[1]);
  const UniqueFd told(ends[0]);
  constexpr std::int64_t enough = 500;
  std::int64_t step = -1;
  while (::read(told.get(), &step, sizeof(step)) == sizeof(step)) {
    if (step == enough) ::kill(child, SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  return step;
}

int lines_of_file(const std::filesystem::path& file) {
  std::ifstream stream(file);
  int lines = 0;
  for (std::string line; std::getline(stream, line);) ++lines;
  return lines;
}

TEST(TrainingOutput, OfAKilledProcessIsWhole) {
  const TempFolder folder;
  const auto last = kill_a_logging_process(folder);
  ASSERT_GE(last, 500);
  const auto shown = run_python("parity/tensorboard_events.py", {.args = {"scalars", folder.file("events")}});
  std::string expected;
  for (std::int64_t step = 0; step <= last; ++step) {
    expected += "loss " + std::to_string(step) + " " + std::to_string(step) + ".0\n";
  }
  EXPECT_EQ(shown.substr(0, expected.size()), expected);
  EXPECT_GE(lines_of_file(folder / "log.csv"), last + 2);
  EXPECT_GE(lines_of_file(folder / "log.jsonl"), last + 1);
}

}  // namespace
}  // namespace lockstep::testing
