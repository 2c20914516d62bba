// What Offload::Create refuses leaves the model as it is.
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/libtorch/offload/offload_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class OffloadRefusalTest : public OffloadTest {
 protected:
  // The message, of that code.
  std::string Refused(absl::StatusCode code, const OffloadOptions& options) {
    const absl::Status status = Offload::Create(*model_, options).status();
    EXPECT_EQ(status.code(), code) << status;
    ExpectInMemory();
    EXPECT_TRUE(folder_.empty());
    return std::string(status.message());
  }
  std::string Invalid(const OffloadOptions& options) {
    return Refused(absl::StatusCode::kInvalidArgument, options);
  }
  OffloadOptions Tiers(const std::vector<std::string>& texts) const {
    OffloadOptions options;
    for (const std::string& text : texts) {
      auto tier = ParseTier(text);
      EXPECT_TRUE(tier.ok()) << tier.status();
      options.tiers.push_back(*std::move(tier));
    }
    return options;
  }
};

class OffloadTiersTest : public OffloadRefusalTest {
 protected:
  void SetUp() override {
    if (folder_.has_daemon()) GTEST_SKIP() << "its tiers are the daemon's";
  }
};

// By the rule of the header: a weight and a bias, each in whole blocks of 4 KiB
// and one more, twice.
constexpr int64_t kMinimum = 2 * ((4 + 1) + (1 + 1)) * 4096;
static_assert(kWidth * kWidth * 4 == 4 * 4096);

TEST_F(OffloadRefusalTest, ABudgetBelowTheMinimumNamesItAndTheParameter) {
  EXPECT_THAT(
      Refused(absl::StatusCode::kResourceExhausted, Bytes(kMinimum - 1)),
      AllOf(HasSubstr("a budget of 57343 bytes is below the minimum of 57344"),
            HasSubstr("'layers.0.weight' most of them")));
  Make(Bytes(kMinimum));
  EXPECT_EQ(offload_->stats().minimum_bytes, kMinimum);
  ExpectValues();
}

TEST_F(OffloadRefusalTest, ASmallerShareIsRaisedToTheMinimum) {
  OffloadOptions options = Bytes(0);
  options.memory_budget_share = 1e-6;
  Make(options);
  EXPECT_EQ(offload_->stats().budget_bytes, kMinimum);
  ExpectValues();
}

TEST_F(OffloadRefusalTest, AShareIsOfTheParameters) {
  OffloadOptions options = Bytes(0);
  options.memory_budget_share = 0.5;
  Make(options);
  EXPECT_EQ(offload_->stats().budget_bytes, kModelBytes / 2);
  ExpectValues();
}

TEST_F(OffloadRefusalTest, NothingBelowForTheRest) {
  if (folder_.has_daemon()) GTEST_SKIP() << "a daemon has a disk";
  OffloadOptions options = Third();
  options.nvme_paths.clear();
  EXPECT_THAT(
      Invalid(options),
      AllOf(HasSubstr(absl::StrCat("memory_budget is ", kModelBytes / 3,
                                   " bytes, the parameters are ", kModelBytes)),
            HasSubstr("there is no nvme_path for the rest")));
  EXPECT_THAT(Invalid(Tiers({"dram=100000"})),
              HasSubstr("there is no tier below for the rest"));
}

TEST_F(OffloadTiersTest, TiersSayTheSame) {
  Make(Tiers({"dram=100000", "nvme:" + folder_.path() + "=64MiB"}));
  const OffloadStats stats = offload_->stats();
  EXPECT_EQ(stats.budget_bytes, 100000);
  ASSERT_EQ(stats.runtime.tiers.size(), 2);
  EXPECT_EQ(stats.runtime.tiers[1].budget_bytes, 64 << 20);
  ExpectValues();
}

TEST_F(OffloadTiersTest, TiersWithoutMemoryHaveATenthOfIt) {
  torch::nn::Sequential model;
  for (int i = 0; i < 64; ++i) model->push_back(torch::nn::Linear(64, 64));
  const auto offload =
      Offload::Create(*model, Tiers({"nvme:" + folder_.path() + "=64MiB"}));
  ASSERT_TRUE(offload.ok()) << offload.status();
  const OffloadStats stats = (*offload)->stats();
  EXPECT_EQ(stats.budget_bytes, 64 * (64 + 1) * 64 * 4 / 10);
  ASSERT_EQ(stats.runtime.tiers.size(), 2);
  EXPECT_EQ(stats.runtime.tiers[0].name, "dram");
  EXPECT_GT(stats.runtime.tiers[1].used_bytes, 0);
}

TEST_F(OffloadRefusalTest, BudgetsThatAreNone) {
  OffloadOptions options = Bytes(-5);
  EXPECT_THAT(Invalid(options), HasSubstr("memory_budget_bytes is -5"));
  options = Bytes(0);
  for (const double share :
       {-0.1, std::nan(""), std::numeric_limits<double>::infinity()}) {
    options.memory_budget_share = share;
    EXPECT_THAT(Invalid(options), HasSubstr("memory_budget_share is"));
  }
  options.memory_budget_share = 1e30;
  EXPECT_THAT(Invalid(options), HasSubstr("more bytes than can be counted"));
  options.memory_budget_share = 0.5;
  options.memory_budget_bytes = 1 << 20;
  EXPECT_THAT(Invalid(options), HasSubstr("1048576 and memory_budget_share"));
  options = Third();
  options.patience = absl::ZeroDuration();
  EXPECT_THAT(Invalid(options), HasSubstr("a patience of 0"));
}

TEST_F(OffloadTiersTest, TiersThatAreNone) {
  OffloadOptions options = Tiers({"dram=1MiB", "nvme:/nowhere"});
  options.nvme_paths = {folder_.path()};
  EXPECT_THAT(Invalid(options), HasSubstr("tiers and nvme_path together"));
  options.nvme_paths.clear();
  options.memory_budget_share = 0.1;
  EXPECT_THAT(Invalid(options), HasSubstr("tiers and memory_budget together"));
  EXPECT_THAT(Invalid(Tiers({"dram=1MiB", "dram=2MiB"})),
              HasSubstr("'dram=2MiB' is a second one of memory"));
  options = {};
  options.tiers = {{.kind = TierKind::kDram, .budget_bytes = 0}};
  EXPECT_THAT(Invalid(options), HasSubstr("dram"));
  EXPECT_THAT(Invalid(Tiers({"hbm:cuda:0=1GiB"})),
              HasSubstr("'hbm:cuda:0': the model is on cpu"));
}

TEST_F(OffloadTiersTest, MemoryOfANode) {
  const std::string disk = "nvme:" + folder_.path();
  Make(Tiers({"dram:node0=100000", disk}));
  EXPECT_EQ(offload_->stats().runtime.tiers[0].name, "dram:node0");
  ExpectValues();
}

TEST_F(OffloadTiersTest, MemoryOfANodeThatIsNotThere) {
  for (const char* const text :
       {"dram:node1023=100000", "dram:node1023=1GiB"}) {
    EXPECT_THAT(Refused(absl::StatusCode::kUnavailable,
                        Tiers({text, "nvme:" + folder_.path()})),
                HasSubstr("this machine has no memory node 1023; it has 0"));
  }
}

TEST_F(OffloadRefusalTest, APathThatIsNotThere) {
  if (folder_.has_daemon()) GTEST_SKIP() << "its paths are the daemon's";
  OffloadOptions options = Third();
  options.nvme_paths = {folder_.path() + "/none"};
  EXPECT_THAT(Refused(absl::StatusCode::kNotFound, options),
              HasSubstr(folder_.path() + "/none"));
}

TEST_F(OffloadRefusalTest, AModelThatIsOffloaded) {
  Make(Third());
  const absl::Status status = Offload::Create(*model_, Third()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'out'"), HasSubstr("another hook")));
  ExpectValues();
}

TEST_F(OffloadRefusalTest, AParameterWithoutValuesIsNamed) {
  model_->register_parameter(
      "later", at::empty({10}, at::TensorOptions().device(at::kMeta)));
  const absl::Status status = Offload::Create(*model_, Third()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'later' is on meta"));
}

TEST_F(OffloadRefusalTest, AModelWithoutParametersIsFine) {
  ::torch::nn::Sequential none{::torch::nn::Tanh()};
  auto made = Offload::Create(*none, {});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->stats().parameter_bytes, 0);
  OffloadOptions options = Bytes(0);
  made = Offload::Create(*none, options);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->stats().parameter_bytes, 0);
}

}  // namespace
}  // namespace terrace
