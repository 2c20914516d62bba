// What code finds that reads a cold tensor in no operation that the hook sees:
// each in a child process, as some of it is a crash.
#include <ATen/record_function.h>
#include <sys/wait.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/hook/compat.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

enum class Found : uint8_t {
  kNumber,   // went on as if nothing were missing
  kOurText,  // threw, and said who we are
  kThrow,    // threw LibTorch's own
  kNull,     // an address that says so
  kCrash,
};

struct Access {
  const char* name;
  Found before_2_12;
  std::function<Found(const at::Tensor&)> run;
};

Found Value(const at::Tensor& result) {
  static_cast<void>(result.sum().item<double>());
  return Found::kNumber;
}

Found AddressFound(const void* address) {
  return address == nullptr ? Found::kNull : Found::kNumber;
}

// Of 64 x 64.
const std::vector<Access>& Accesses() {
  static const auto& accesses = *new std::vector<Access>{
      {"data_ptr()", Found::kNull,
       [](const at::Tensor& t) { return AddressFound(t.data_ptr()); }},
      {"const_data_ptr()", Found::kNull,
       [](const at::Tensor& t) { return AddressFound(t.const_data_ptr()); }},
      {"data_ptr<float>()", Found::kThrow,
       [](const at::Tensor& t) { return AddressFound(t.data_ptr<float>()); }},
      {"const_data_ptr<float>()", Found::kThrow,
       [](const at::Tensor& t) {
         return AddressFound(t.const_data_ptr<float>());
       }},
      {"mm", Found::kThrow, [](const at::Tensor& t) { return Value(t.mm(t)); }},
      {"conv1d", Found::kThrow,
       [](const at::Tensor& t) {
         return Value(at::conv1d(at::ones({1, 64, 9}), t.view({64, 64, 1})));
       }},
      {"item", Found::kThrow,
       [](const at::Tensor& t) {
         static_cast<void>(t.select(0, 1)[2].item<double>());
         return Found::kNumber;
       }},
      {"add", Found::kCrash, [](const at::Tensor& t) { return Value(t + 1); }},
      {"sum", Found::kCrash, [](const at::Tensor& t) { return Value(t); }},
      {"copy_ from", Found::kCrash,
       [](const at::Tensor& t) {
         return Value(at::zeros({64, 64}).copy_(t));
       }},
      {"embedding", Found::kCrash,
       [](const at::Tensor& t) {
         return Value(at::embedding(t, at::arange(0, 64, 7)));
       }},
      {"fill_", Found::kCrash,
       [](const at::Tensor& t) { return Value(t.fill_(1)); }},
      {"torch::save", Found::kCrash, [](const at::Tensor& t) {
         std::ostringstream file;
         torch::save(t, file);
         return Found::kNumber;
       }}};
  return accesses;
}

Found InChild(const Access& access, const at::Tensor& tensor) {
  const pid_t child = fork();
  if (child == 0) {
    const at::DisableRecordFunctionGuard unseen;
    Found found = Found::kNumber;
    const std::string text = TextThrown([&] { found = access.run(tensor); });
    if (!text.empty()) {
      found = text.starts_with("terrace: 'cold' 16 KiB: ") ? Found::kOurText
                                                           : Found::kThrow;
    }
    _exit(static_cast<int>(found));
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? static_cast<Found>(WEXITSTATUS(status))
                           : Found::kCrash;
}

TEST_F(HookTest, UnguardedAccessesNeverFindANumber) {
  Make(64 << 10);
  const at::Tensor tensor = Cold("cold", {64, 64});
  for (const Access& access : Accesses()) {
    EXPECT_EQ(InChild(access, tensor),
              kTellsAway ? Found::kOurText : access.before_2_12)
        << access.name;
  }
  EXPECT_TRUE(IsCold(tensor));
}

TEST_F(HookTest, UnguardedAccessesAfterAFailureFindOurText) {
  Make(64 << 10);
  const at::Tensor tensor = Managed("cold", at::randn({64, 64}));
  EvictFromMemory();
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  EXPECT_NE(TextThrown([&] { tensor.sum(); }), "");
  for (const Access& access : Accesses()) {
    EXPECT_EQ(InChild(access, tensor), Found::kOurText) << access.name;
  }
}

}  // namespace
}  // namespace terrace
