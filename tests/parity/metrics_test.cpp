// SPDX-License-Identifier: BSD-3-Clause
// Metrics beside scikit-learn: in one process batch by batch, and over ranks with uneven shards.
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/metrics/metrics.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/serialize/torch_file.h>

#include "support/error_of.h"
#include "support/python.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing::metrics_test {
namespace {

using namespace metrics;
using ::testing::HasSubstr;
constexpr int kCases = 50;
constexpr std::int64_t kBatch = 7;
constexpr double kRounding = 1e-12;  // sums in another order

// Few distinct scores give ties for the AUROC. The last class of some cases is no target, of some no
// prediction either.
Dict draw_case(int number) {
  torch::manual_seed(static_cast<std::uint64_t>(number));
  const auto n = torch::randint(20, 120, {}).item<std::int64_t>();
  const auto classes = torch::randint(2, 7, {}).item<std::int64_t>();
  auto scores = torch::randn({n, classes});
  if (number % 3 == 0) scores.select(1, 0).mul_(3).round_();
  const bool lacks_last = classes > 2 && number % 5 > 2;
  if (number % 5 == 4) scores.select(1, classes - 1).sub_(100);
  auto targets = torch::randint(number % 2, lacks_last ? classes - 1 : classes, {n});
  targets[0] = 0;
  targets[1] = 1;
  auto tokens = targets.clone();
  tokens.slice(0, 2, n, 5).fill_(-100);
  return {{"scores", scores}, {"targets", targets}, {"tokens", tokens}};
}

// All metrics, which begin with no samples.
struct All {
  explicit All(std::int64_t classes) : confusion(classes), classes_(classes) {}

  void update(const at::Tensor& scores, const at::Tensor& targets, const at::Tensor& tokens) {
    accuracy.update(scores, targets);
    top_2.update(scores, targets);
    confusion.update(scores, targets);
    squared_error.update(scores.select(1, 0), targets);
    perplexity.update(scores, tokens);
    binary.update(scores.select(1, 0), targets.eq(0).to(torch::kLong));
    auroc.update(scores.to(torch::kDouble).softmax(1), targets);
  }

  TrainingState parts() {
    TrainingState state;
    return state.add("accuracy", accuracy)
        .add("top_2", top_2)
        .add("confusion", confusion)
        .add("squared_error", squared_error)
        .add("perplexity", perplexity)
        .add("binary", binary)
        .add("auroc", auroc);
  }

  std::map<std::string, at::Tensor> compute() const {
    const auto matrix = confusion.compute();
    const auto of_classes = class_scores(matrix);
    std::map<std::string, at::Tensor> values{
        {"confusion_matrix", matrix.to(torch::kDouble)},
        {"class_scores",
         torch::stack({of_classes.precision, of_classes.recall, of_classes.f1, of_classes.support})}};
    const auto set = [&](const std::string& name, double value) {
      values[name] = torch::tensor(value, torch::kDouble);
    };
    set("accuracy", accuracy.compute());
    set("top_2", top_2.compute());
    set("balanced_accuracy", balanced_accuracy(matrix));
    set("mean_squared_error", squared_error.compute());
    set("perplexity", perplexity.compute());
    set("binary_auroc", binary.compute());
    if (classes_ > 2) set("auroc", auroc.compute());
    const std::map<std::string, Average> averages{
        {"micro", Average::micro}, {"macro", Average::macro}, {"weighted", Average::weighted}};
    for (const auto& [name, average] : averages) {
      set("precision " + name, precision(matrix, average));
      set("recall " + name, recall(matrix, average));
      set("f1 " + name, f1_score(matrix, average));
    }
    return values;
  }

  Accuracy accuracy;
  Accuracy top_2{{.top_k = 2}};
  ConfusionMatrix confusion;
  MeanSquaredError squared_error;
  Perplexity perplexity;
  Auroc binary, auroc;
  std::int64_t classes_;
};

// Updates with the samples [begin, end) in batches.
void update(All& all, const Value& drawn, std::int64_t begin, std::int64_t end) {
  for (; begin < end; begin += kBatch) {
    const auto part = [&](const char* name) {
      return drawn[name].as_tensor().slice(0, begin, std::min(begin + kBatch, end));
    };
    all.update(part("scores"), part("targets"), part("tokens"));
  }
}

void expect_equal(const std::map<std::string, at::Tensor>& values, const Dict& expected) {
  for (const auto& [key, value] : expected) {
    const auto found = values.find(key.as_string());
    ASSERT_NE(found, values.end()) << key.as_string();
    // PyTorch computes the log-softmax of the perplexity in float32.
    const double tolerance = key.as_string() == "perplexity" ? 1e-6 : kRounding;
    EXPECT_TRUE(torch::allclose(found->second, value.as_tensor(), tolerance, tolerance))
        << key.as_string() << ": " << found->second << " instead of " << value.as_tensor();
  }
}

std::int64_t samples_of(const Value& drawn) { return drawn["targets"].as_tensor().size(0); }
std::int64_t classes_of(const Value& drawn) { return drawn["scores"].as_tensor().size(1); }

// The samples 0 .. share * n of the first rank, the next of the second, none of the last. In the middle, the
// run is saved by all ranks and continued from rank 0's file.
void check_ranks(const Context& context, const Value& drawn, const Dict& expected) {
  const auto n = samples_of(drawn);
  const std::vector<std::int64_t> bounds{0, n / 4, n, n};
  const auto rank = static_cast<std::size_t>(context.rank());
  const auto middle = (bounds[rank] + bounds[rank + 1]) / 2;
  All saved(classes_of(drawn));
  update(saved, drawn, bounds[rank], middle);
  const auto bytes = context.group().broadcast_object(save_bytes(saved.parts().state_dict()), 0);
  All all(classes_of(drawn));
  all.parts().load_state_dict(load_bytes(std::span(bytes)).as_dict());
  update(all, drawn, middle, bounds[rank + 1]);
  expect_equal(all.compute(), expected);
}

const Scenario uneven_shards("metrics over uneven shards", [] {
  const auto context = init();
  const auto folder = std::string(std::getenv("METRICS_FOLDER"));
  const auto cases = load(folder + "/cases.pt");
  const auto expected = load(folder + "/expected.pt");
  for (std::size_t i = 0; i < cases.as_items().size(); i += 4)
    check_ranks(context, cases.as_items()[i], expected.as_items()[i].as_dict());
});

const Scenario reduced_values("values and meters over ranks", [] {
  const auto context = init();
  const auto rank = context.rank();
  EXPECT_EQ(reduce_value(rank + 1.0), 2.0);
  EXPECT_EQ(reduce_value(rank + 1.0, ReduceOp::SUM), 6.0);
  const auto both = reduce_value({{"loss", 3.0 * rank}, {"top", 1.0}}, ReduceOp::SUM);
  EXPECT_EQ(both, (std::map<std::string, double>{{"loss", 9.0}, {"top", 3.0}}));
  const auto integers = torch::tensor({rank, 2});
  EXPECT_TRUE(torch::equal(reduce_value(integers), torch::tensor({1.0, 2.0}, torch::kDouble)));
  EXPECT_TRUE(torch::equal(integers, torch::tensor({rank, 2})));
  EXPECT_TRUE(
      torch::equal(reduce_value(torch::tensor({true, rank == 0}), ReduceOp::SUM), torch::tensor({3, 1})));
  EXPECT_THAT(error_of<DesyncError>([&] {
                reduce_value({{rank == 1 ? "lose" : "loss", 1.0}});
              }),
              HasSubstr("passes the names"));
  AverageMeter loss;
  if (rank != 2) loss.update(torch::tensor(rank + 1.0F), rank == 0 ? 1 : 3);
  EXPECT_DOUBLE_EQ(loss.compute(), 7.0 / 4);
  EXPECT_EQ(loss.count(), rank == 2 ? 0 : 2 * rank + 1);
  Throughput throughput;
  if (rank == 0) throughput.update(10);
  const auto before = throughput.rate();  // falls as time passes
  const auto sum = throughput.compute();
  EXPECT_DOUBLE_EQ(reduce_value(sum), sum);
  if (rank == 0) {
    EXPECT_LE(sum, before);
    EXPECT_GE(sum, throughput.rate());
  }
});

class Metrics : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    List cases;
    for (int i = 0; i < kCases; ++i) cases.items.emplace_back(draw_case(i));
    save(cases, folder().file("cases.pt"));
    run_python("parity/metrics.py", {.args = {folder().file("cases.pt"), folder().file("expected.pt")}});
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static TempFolder& folder() {
    if (!folder_) folder_ = std::make_unique<TempFolder>();
    return *folder_;
  }

 private:
  static inline std::unique_ptr<TempFolder> folder_;
};

TEST_F(Metrics, EqualScikitLearnBatchByBatch) {
  const auto cases = load(folder().file("cases.pt"));
  const auto expected = load(folder().file("expected.pt"));
  for (std::size_t i = 0; i < kCases; ++i) {
    SCOPED_TRACE(i);
    const auto& drawn = cases.as_items()[i];
    All all(classes_of(drawn));
    update(all, drawn, 0, samples_of(drawn));
    expect_equal(all.compute(), expected.as_items()[i].as_dict());
  }
}

TEST_F(Metrics, AreExactOverUnevenShardsAndAfterAResume) {
  expect_all_passed(
      run_ranks(uneven_shards, {.world_size = 3, .env = {{"METRICS_FOLDER", folder().path().string()}}}));
}

TEST(ReducedValues, AreMeansAndSumsOfTheRanks) {
  expect_all_passed(run_ranks(reduced_values, {.world_size = 3}));
}

TEST(Meters, RememberTheLastValueAndTheMean) {
  AverageMeter loss;
  EXPECT_TRUE(std::isnan(loss.val()));
  EXPECT_TRUE(std::isnan(loss.avg()));
  loss.update(1.0, 3);
  loss.update(torch::tensor({5.0F}, torch::requires_grad()));
  EXPECT_EQ(loss.val(), 5);
  EXPECT_EQ(loss.avg(), 2);
  EXPECT_EQ(loss.count(), 4);
  loss.reset();
  EXPECT_EQ(loss.count(), 0);
  EXPECT_TRUE(std::isnan(loss.val()));
}

TEST(MetricArguments, AreRefusedWithTheirShapes) {
  const auto message = [](auto action) { return error_of<ArgumentError>(action); };
  const auto scores = torch::rand({4, 3});
  const auto targets = torch::tensor({0, 1, 2, 1});
  EXPECT_THAT(message([&] { Accuracy({.top_k = 0}); }), HasSubstr("top_k = 0"));
  EXPECT_THAT(message([&] { Accuracy({.top_k = 4}).update(scores, targets); }), HasSubstr("top_k = 4"));
  EXPECT_THAT(message([&] { Accuracy().update(scores, targets.slice(0, 1)); }), HasSubstr("[4, 3]"));
  EXPECT_THAT(message([&] { Accuracy().update(scores, scores.select(1, 0)); }), HasSubstr("Float targets"));
  EXPECT_THAT(message([&] { ConfusionMatrix(2).update(scores, targets); }), HasSubstr("for 2 classes"));
  ConfusionMatrix two(2);
  two.update(targets, targets);
  EXPECT_THAT(message([&] { two.compute(); }), HasSubstr("1 samples have a target"));
  ConfusionMatrix ignoring(2);
  ignoring.update(targets, targets, 2);
  EXPECT_TRUE(torch::equal(ignoring.compute(), torch::tensor({{1, 0}, {0, 2}})));
  EXPECT_THAT(message([&] { MeanSquaredError().update(scores, targets); }), HasSubstr("[4]"));
  EXPECT_THAT(message([&] { Perplexity().update(targets, targets); }), HasSubstr("vocabulary"));
  EXPECT_THAT(message([&] { Auroc().update(scores, targets + 1); }), HasSubstr("outside of 0 .. 2"));
  EXPECT_THAT(message([&] { Auroc().update(scores / 0 * 0, targets); }), HasSubstr("NaN"));
  EXPECT_THAT(message([&] { Auroc().update(scores, targets * 0.5); }), HasSubstr("int64"));
  EXPECT_THAT(message([&] { Perplexity().update(scores, targets * 0.5); }), HasSubstr("int64"));
  EXPECT_THAT(message([&] { Accuracy().update(torch::tensor(0.7), torch::tensor(1)); }),
              HasSubstr("classes"));
  EXPECT_TRUE(std::isnan(Auroc().compute()));
  Auroc one_class;
  one_class.update(torch::rand({3}), torch::ones({3}, torch::kLong));
  EXPECT_TRUE(std::isnan(one_class.compute()));
  EXPECT_THAT(message([&] { reduce_value(1.0, ReduceOp::MAX); }), HasSubstr("ReduceOp::AVG"));
  EXPECT_THAT(error_of<CheckpointError>([&] { Accuracy().load_state_dict(two.state_dict()); }),
              HasSubstr("another metric"));
}

TEST(Metric, KeepsItsSamplesWhenTheCallerReusesTheTensors) {
  const auto scores = torch::zeros({2}, torch::kDouble);
  const auto targets = torch::zeros({2}, torch::kLong);
  Auroc auroc;
  scores.copy_(torch::tensor({0.1, 0.9}));
  targets.copy_(torch::tensor({0, 1}));
  auroc.update(scores, targets);
  scores.copy_(torch::tensor({0.5, 0.5}));
  targets.copy_(torch::tensor({0, 0}));
  auroc.update(scores, targets);
  EXPECT_EQ(auroc.compute(), 1.0);
  AverageMeter meter;
  const auto value = torch::tensor(2.0);
  meter.update(value);
  value.zero_();
  EXPECT_EQ(meter.val(), 2.0);
}

// As top_k_accuracy_score().
TEST(Metric, CountsTheLastOfEqualScores) {
  Accuracy two({.top_k = 2});
  two.update(torch::ones({3, 3}), torch::tensor({0, 1, 2}));
  two.update(torch::tensor({{2.0, 1.0, 1.0}, {std::nan(""), 1.0, 0.0}}), torch::tensor({1, 2}));
  EXPECT_DOUBLE_EQ(two.compute(), 2.0 / 5);
}

// A mean over no samples is NaN, as that of cross_entropy is.
TEST(Metric, IsUnchangedByAMeanOfNoSamples) {
  AverageMeter loss;
  Perplexity perplexity;
  loss.update(2.0, 3);
  perplexity.update_loss(torch::tensor(2.0), 3);
  loss.update(std::nan(""), 0);
  perplexity.update_loss(torch::tensor(std::nan("")), 0);
  EXPECT_EQ(loss.avg(), 2);
  EXPECT_DOUBLE_EQ(perplexity.compute(), std::exp(2.0));
  EXPECT_THAT(error_of<ArgumentError>([&] { loss.update(2.0, -1); }), HasSubstr("n = -1"));
  loss.update(std::nan(""));
  EXPECT_TRUE(std::isnan(loss.avg()));
}

TEST(Metric, TakesEmptyBatches) {
  Accuracy accuracy, top_2({.top_k = 2});
  ConfusionMatrix confusion(3);
  MeanSquaredError squared_error;
  Perplexity perplexity;
  Auroc auroc;
  const auto scores = torch::rand({0, 3});
  const auto targets = torch::zeros({0}, torch::kLong);
  accuracy.update(scores, targets);
  top_2.update(scores, targets);
  confusion.update(scores, targets);
  squared_error.update(scores, scores);
  perplexity.update(scores, targets);
  auroc.update(scores, targets);
  for (const double value :
       {accuracy.compute(), top_2.compute(), squared_error.compute(), perplexity.compute(), auroc.compute()})
    EXPECT_TRUE(std::isnan(value));
  EXPECT_TRUE(torch::equal(confusion.compute(), torch::zeros({3, 3}, torch::kLong)));
  EXPECT_EQ(f1_score(confusion.compute()), 0);
}

TEST(Metric, ScoresSharesAsWellAsCounts) {
  const auto counts = torch::tensor({{3, 1, 0}, {2, 5, 0}, {1, 1, 2}});
  const auto shares = counts.to(torch::kDouble) / counts.sum();
  for (const auto average : {Average::micro, Average::macro, Average::weighted}) {
    EXPECT_NEAR(precision(shares, average), precision(counts, average), kRounding);
    EXPECT_NEAR(recall(shares, average), recall(counts, average), kRounding);
    EXPECT_NEAR(f1_score(shares, average), f1_score(counts, average), kRounding);
  }
  EXPECT_NEAR(balanced_accuracy(shares), balanced_accuracy(counts), kRounding);
}

TEST(Metric, ComputesThePerplexityOfHalfPrecisionInFloat) {
  torch::manual_seed(1);
  const auto logits = torch::randn({50, 20}).to(torch::kBFloat16);
  const auto targets = torch::randint(20, {50});
  Perplexity perplexity;
  perplexity.update(logits, targets);
  const auto loss = torch::nn::functional::cross_entropy(logits.to(torch::kDouble), targets);
  EXPECT_NEAR(perplexity.compute(), std::exp(loss.item<double>()), 1e-5);
}

TEST(Metric, UpdatesLossesForThePerplexity) {
  Perplexity perplexity;
  perplexity.update_loss(torch::tensor(2.0), 3);
  perplexity.update_loss(torch::tensor(6.0), 1);
  EXPECT_DOUBLE_EQ(perplexity.compute(), std::exp(3.0));
}

TEST(AverageMeters, KeepTheirValuesInCopiesAndStates) {
  AverageMeter meter;
  meter.update(1.0);
  const auto copy = meter;
  const auto state = meter.state_dict();
  meter.update(3.0);
  EXPECT_EQ(copy.avg(), 1.0);
  meter.load_state_dict(state);
  EXPECT_EQ(meter.avg(), 1.0);
}

}  // namespace
}  // namespace lockstep::testing::metrics_test
