// SPDX-License-Identifier: BSD-3-Clause
// ReduceLROnPlateau beside Python's: every rate after every step, and states that go from one to the other.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/optim/reduce_lr_on_plateau.h>
#include <lockstep/serialize/torch_file.h>

#include "support/error_of.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing::plateau_test {
namespace {

using ::testing::HasSubstr;
constexpr std::size_t kHalf = 20;

List metrics(double slope) {
  List list;
  for (int i = 0; i < 40; ++i) list.items.emplace_back(std::sin(i * 0.9) / (i + 1) + slope * i);
  return list;
}

List cases() {
  const auto one = [](Dict options, double slope) {
    return Dict{{"options", std::move(options)}, {"metrics", metrics(slope)}};
  };
  return {one({}, 0.0),
          one({{"patience", 2}}, 0.0),
          one({{"patience", 0}, {"factor", 0.5}, {"cooldown", 3}}, 0.01),
          one({{"mode", "max"}, {"patience", 1}, {"threshold", 0.1}}, 0.0),
          one({{"mode", "max"}, {"threshold_mode", "abs"}, {"patience", 1}, {"threshold", 0.05}}, 0.01),
          one({{"threshold_mode", "abs"}, {"patience", 1}, {"min_lr", 0.01}}, 0.0),
          one({{"patience", 1}, {"min_lr", List{0.2, 0.001}}, {"eps", 0.01}}, 0.0)};
}

template <typename Enum>
Enum literal(const Value& value) {
  return parse_literal<Enum>(value.as_string()).value();
}

optim::ReduceLROnPlateauOptions options_of(const Dict& dict) {
  optim::ReduceLROnPlateauOptions options;
  const auto take = [&](const char* name, auto& field, auto convert) {
    if (const auto* value = dict.find(name)) field = convert(*value);
  };
  const auto number = [](const Value& value) { return value.as_double(); };
  take("mode", options.mode, literal<optim::PlateauMode>);
  take("threshold_mode", options.threshold_mode, literal<optim::ThresholdMode>);
  take("factor", options.factor, number);
  take("threshold", options.threshold, number);
  take("eps", options.eps, number);
  take("patience", options.patience, [](const Value& value) { return value.as_int(); });
  take("cooldown", options.cooldown, [](const Value& value) { return value.as_int(); });
  if (const auto* least = dict.find("min_lr")) {
    if (!least->is<List>()) options.min_lr = least->as_double();
    if (least->is<List>())
      options.min_lr = {least->as_items()[0].as_double(), least->as_items()[1].as_double()};
  }
  return options;
}

class Twin {
 public:
  explicit Twin(const Dict& case_dict)
      : optimizer_(groups(), torch::optim::SGDOptions(0.1)),
        scheduler(optimizer_, options_of(case_dict.at("options").as_dict())) {}

  void set_rates(const Value& rates) {
    for (std::size_t i = 0; i < 2; ++i)
      optimizer_.param_groups()[i].options().set_lr(rates.as_items()[i].as_double());
  }

 private:
  static std::vector<torch::optim::OptimizerParamGroup> groups() {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const double rate : {0.5, 0.25}) {
      groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1})},
                          std::make_unique<torch::optim::SGDOptions>(rate));
    }
    return groups;
  }
  torch::optim::SGD optimizer_;

 public:
  optim::ReduceLROnPlateau scheduler;
};

void expect_same_state(const Dict& ours, const Dict& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [key, value] : theirs) {
    const auto& own = ours.at(key);
    if (value.is<List>()) {
      for (std::size_t i = 0; i < value.as_items().size(); ++i) {
        EXPECT_EQ(own.as_items().at(i).as_double(), value.as_items()[i].as_double()) << repr(key);
      }
    } else if (value.is<double>() || value.is<std::int64_t>()) {
      EXPECT_EQ(own.as_double(), value.as_double()) << repr(key);
    } else {
      EXPECT_TRUE(equal(own, value)) << repr(key);
    }
  }
}

// Steps from `first` on; where `theirs` has rates, they are the same after each step.
void step_beside(Twin& twin, const Value& metrics, std::size_t first, const Value& theirs) {
  const auto& rates = theirs["rates"].as_items();
  for (std::size_t i = first; i < metrics.as_items().size(); ++i) {
    twin.scheduler.step(metrics.as_items()[i].as_double());
    for (std::size_t group = 0; group < 2; ++group) {
      EXPECT_EQ(twin.scheduler.get_last_lr()[group], rates[i - first].as_items()[group].as_double())
          << "step " << i;
    }
  }
  expect_same_state(twin.scheduler.state_dict(), theirs["state"].as_dict());
}

TEST(ReduceLROnPlateau, MatchesPythonAndExchangesItsState) {
  const TempFolder folder;
  const auto all = cases();
  save(all, folder.file("cases.pt"));
  run_python("parity/plateau.py", {.args = {folder.file("cases.pt"), folder.file("whole.pt"), "0", "-"}});
  const auto whole = load(folder.file("whole.pt"));
  List halves;
  for (std::size_t i = 0; i < all.items.size(); ++i) {
    const auto& one = all.items[i].as_dict();
    Twin twin(one);
    step_beside(twin, one.at("metrics"), 0, whole.as_items()[i]);
    Twin half(one);
    for (std::size_t step = 0; step < kHalf; ++step)
      half.scheduler.step(one.at("metrics").as_items()[step].as_double());
    halves.items.emplace_back(Dict{{"state", half.scheduler.state_dict()}});
  }
  // The second half in Python, and in C++ from the state that Python wrote after its half.
  save(halves, folder.file("halves.pt"));
  run_python("parity/plateau.py", {.args = {folder.file("cases.pt"), folder.file("second.pt"),
                                            std::to_string(kHalf), folder.file("halves.pt")}});
  const auto second = load(folder.file("second.pt"));
  for (std::size_t i = 0; i < all.items.size(); ++i) {
    expect_same_state(second.as_items()[i]["state"].as_dict(), whole.as_items()[i]["state"].as_dict());
    const auto& state = halves.items[i]["state"];
    Twin twin(all.items[0].as_dict());  // the options come from the state, too
    twin.scheduler.load_state_dict(state.as_dict());
    twin.set_rates(state["_last_lr"]);
    step_beside(twin, all.items[i]["metrics"], kHalf, second.as_items()[i]);
  }
}

TEST(ReduceLROnPlateau, RejectsInvalidOptions) {
  torch::optim::SGD optimizer({torch::zeros({1})}, 0.1);
  EXPECT_THAT(error_of([&] { optim::ReduceLROnPlateau(optimizer, {.factor = 1}); }), HasSubstr("factor = 1"));
  EXPECT_THAT(error_of([&] {
                optim::ReduceLROnPlateau(optimizer, {.min_lr = {0, 0}});
              }),
              HasSubstr("min_lr has 2 values"));
  optim::ReduceLROnPlateau scheduler(optimizer);
  EXPECT_THAT(error_of([&] {
                scheduler.load_state_dict({{"patience", 3}, {"mode", "up"}});
              }),
              HasSubstr("up"));
  EXPECT_EQ(scheduler.state_dict()["patience"].as_int(), 10);
}

}  // namespace
}  // namespace lockstep::testing::plateau_test
