#include "runtime/residency/registrar.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_core.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kRegisteredBytes = 2 * kPage;

class RegistrarTest : public testing::Test {
 protected:
  using Ids = absl::StatusOr<std::vector<TensorId>>;

  explicit RegistrarTest(const TestMachineOptions& options = {})
      : core_(options) {}

  // The sizes in pages; their names are those of the alphabet from `first` on.
  std::shared_ptr<Question> Register(const std::vector<int>& pages,
                                     char first = 'a') {
    auto asked = std::make_shared<Question>(*core_.port);
    RegisterRequest request;
    request.id = asked->id();
    for (size_t i = 0; i < pages.size(); ++i) {
      request.specs.push_back(
          {.name = std::string(1, static_cast<char>(first + i)),
           .size_bytes = pages[i] * kPage});
    }
    registrar_.Register(std::move(request));
    registrar_.ServeRegistrations();
    return asked;
  }
  // An answer that is there.
  Ids Get(const std::shared_ptr<Question>& asked) {
    return asked->Await<std::vector<TensorId>>(core_.machine.clock);
  }
  // The disk's background answers.
  void Grow(size_t path) {
    TERRACE_CHECK(core_.machine.background[path].RunAll() == 1);
    core_.Hear();
    registrar_.ServeRegistrations();
  }
  int64_t used(TierId tier) {
    return core_.resting.at(tier).usage().used_bytes;
  }

  TestCore core_;
  Registrar& registrar_ = core_.registrar;
};

TEST_F(RegistrarTest, AllOfASpanAreRegisteredWithAPlaceEach) {
  const Ids ids = Get(Register({1, 2, 1}));
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, ElementsAre(TensorId{0}, TensorId{1}, TensorId{2}));
  for (const TensorId id : *ids) {
    ASSERT_NE(core_.table.Find(id), nullptr);
    EXPECT_NE(core_.table.Find(id)->resting(), nullptr);
  }
  EXPECT_EQ(used(kDisk0) + used(kDisk1),
            3 * kPage + 4 * kPage);  // a header each
}

TEST_F(RegistrarTest, ANameThatIsTakenRefusesAllAndGivesTheOthersBack) {
  ASSERT_TRUE(Get(Register({1}, 'c')).ok());
  const absl::Status refused = Get(Register({1, 1, 1}, 'a')).status();
  EXPECT_TRUE(absl::IsAlreadyExists(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("'c'"));
  const Ids again = Get(Register({1, 1}, 'a'));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_THAT(*again, ElementsAre(TensorId{1}, TensorId{2}));  // none spent
}

TEST_F(RegistrarTest, WhatHasNoRoomRefusesAllAndGivesTheirPlacesBack) {
  const absl::Status refused = Get(Register({1, 1, 1000})).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              testing::AllOf(HasSubstr("disk0/state"), HasSubstr("disk1")));
  EXPECT_EQ(used(kDisk0) + used(kDisk1), 0);
  EXPECT_TRUE(Get(Register({1})).ok());
}

TEST_F(RegistrarTest, WhatWaitsIsToldWhyItIsRefused) {
  RegisterRequest request;
  request.specs = {{.name = "a", .size_bytes = kPage}};
  const auto asked = std::make_shared<Question>(*core_.port);
  request.id = asked->id();
  registrar_.Register(std::move(request));
  registrar_.Refuse(absl::CancelledError("closing"));
  EXPECT_EQ(Get(asked).status(), absl::CancelledError("closing"));
  registrar_.ServeRegistrations();  // none waits
}

class NoDiskRegistrarTest : public RegistrarTest {
 protected:
  NoDiskRegistrarTest() : RegistrarTest({.paths = 0}) {}
};

TEST_F(NoDiskRegistrarTest, WithoutATierBelowTheyHaveNoPlace) {
  ASSERT_TRUE(Get(Register({1, 1})).ok());
  EXPECT_EQ(core_.table.Find(TensorId{1})->resting(), nullptr);
}

// Two disks that have nothing yet.
class GrowingRegistrarTest : public RegistrarTest {
 protected:
  GrowingRegistrarTest() : RegistrarTest({.path_bytes = 0}) {}

  void FillDisk(size_t path) {
    core_.machine.files[path]->grow_status =
        absl::ResourceExhaustedError("disk0: ENOSPC");
  }
};

TEST_F(GrowingRegistrarTest, ItWaitsForItsTierToGrow) {
  const auto reply = Register({1});
  EXPECT_EQ(core_.table.Find(TensorId{0}), nullptr);
  Grow(0);
  EXPECT_NE(core_.table.Find(TensorId{0}), nullptr);
  EXPECT_TRUE(Get(reply).ok());
}

TEST_F(GrowingRegistrarTest, ANameIsTakenWhileItWaits) {
  const auto reply = Register({1});
  EXPECT_TRUE(absl::IsAlreadyExists(Get(Register({1})).status()));
  Grow(0);
  EXPECT_TRUE(Get(reply).ok());
}

TEST_F(GrowingRegistrarTest, ATierThatRefusedIsAskedAgainOnlyForLess) {
  FillDisk(0);
  const auto reply = Register({4, 2, 2, 1});
  Grow(0);  // refused for 4
  Grow(1);
  EXPECT_EQ(core_.machine.files[0]->growths, 1);
  Grow(0);  // refused for 2
  Grow(1);
  EXPECT_EQ(core_.machine.files[0]->growths, 2);
  Grow(1);  // the second of 2 is not asked for there
  EXPECT_EQ(core_.machine.files[0]->growths, 2);
  Grow(0);  // but 1 is
  EXPECT_EQ(core_.machine.files[0]->growths, 3);
  Grow(1);
  EXPECT_EQ(Get(reply)->size(), 4u);
  EXPECT_EQ(used(kDisk0), 0);
}

TEST_F(GrowingRegistrarTest, TheLastTiersAnswerCountsWithAllMessages) {
  FillDisk(0);
  core_.machine.files[1]->grow_status = absl::UnavailableError("disk1: EIO");
  const auto reply = Register({1});
  Grow(0);
  Grow(1);
  const absl::Status refused = Get(reply).status();
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_EQ(refused.message(), "disk1: EIO; disk0: ENOSPC");
}

TEST_F(GrowingRegistrarTest, ALateTierIsLeftForTheNext) {
  const auto reply = Register({1});
  std::vector<QueueError> errors;
  VirtualClock& clock = core_.machine.clock;
  for (int i = 0; i < 8; ++i) {
    clock.JumpTo(clock.Now() + absl::Milliseconds(125));
    registrar_.CheckGrowth(clock.Now(), &errors);
  }
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].queue, -1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(errors[0].status));
  EXPECT_EQ(core_.placement.StatsOf(kDisk0).write_error, errors[0].status);
  registrar_.ServeRegistrations();
  Grow(1);
  EXPECT_TRUE(Get(reply).ok());
  EXPECT_EQ(used(kDisk1), kRegisteredBytes);
  Grow(0);  // its answer may still come: it has room for the next
  EXPECT_TRUE(Get(Register({1}, 'b')).ok());
  EXPECT_EQ(used(kDisk0), kRegisteredBytes);
}

// Without disks, so that there is room for all.
class LongTurnTest : public testing::Test {
 protected:
  LongTurnTest() : core_({.paths = 0}) {}
  TestCore core_;
};

// Whoever asks whether the mover turns has an answer all the while.
TEST_F(LongTurnTest, AMillionRegistrationsInATurnAreNoStop) {
  constexpr int kTensors = 1'000'000;
  RegisterRequest request;
  Question asked(*core_.port);
  request.id = asked.id();
  request.specs.resize(kTensors);
  for (int i = 0; i < kTensors; ++i) {
    TensorSpec& spec = request.specs[static_cast<size_t>(i)];
    spec.name = absl::StrCat(i);
    spec.size_bytes = kPage;
  }
  std::atomic<bool> ends = false;
  absl::Duration longest;
  int answers = 0;
  std::thread asks([&] {
    while (!ends) {
      const absl::Time now = absl::Now();
      const absl::Duration silence = core_.heartbeat->SilenceAt(now);
      longest = std::max(longest, silence);
      if (silence == absl::ZeroDuration()) ++answers;
      core_.heartbeat->Ask(now);
    }
  });
  const absl::Time begin = absl::Now();
  core_.registrar.Register(std::move(request));
  core_.registrar.ServeRegistrations();
  const absl::Duration took = absl::Now() - begin;
  ends = true;
  asks.join();
  const auto ids = asked.Await<std::vector<TensorId>>(core_.machine.clock);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->size(), static_cast<size_t>(kTensors));
  EXPECT_GT(answers, 100);
  EXPECT_LT(longest, took / 2);
}

}  // namespace
}  // namespace terrace
