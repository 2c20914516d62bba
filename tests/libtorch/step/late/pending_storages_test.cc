// Operations wait for what they take and for nothing else, and waiting ends.
#include "libtorch/step/late/pending_storages.h"

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {

// Stands for that of LibTorch's side.
class RefusedStorage {
 public:
  explicit RefusedStorage(const void* key) : storage(key) {}
  const void* const storage;
};

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

// Stand for storages.
constexpr char kA = 0, kB = 0, kShared = 0, kGradientA = 0, kOther = 0;

PendingStorages::Refused NotRefused(size_t operand, const absl::Status& why) {
  ADD_FAILURE() << "operand " << operand << ": " << why;
  return nullptr;
}

struct Failure {
  size_t operand;
  absl::Status why;
  std::string text() const { return std::string(why.message()); }
};

class PendingStoragesTest : public testing::Test {
 protected:
  PendingStoragesTest() {
    pending_.Add(3, "a", &kA, &kGradientA, gradient_);
    pending_.Add(5, "b", &kB, nullptr, nullptr);
    pending_.Add(7, "c", &kShared, nullptr, nullptr);
    pending_.Add(8, "d", &kShared, nullptr, nullptr);
  }
  ~PendingStoragesTest() override {
    if (!pending_.has_ended()) pending_.End(absl::OkStatus());
  }

  std::vector<Failure> Await(const void* storage, bool is_written = false) {
    const PendingStorages::Operand operand = {storage, is_written};
    return AwaitAll({&operand, 1});
  }
  std::vector<Failure> AwaitAll(
      absl::Span<const PendingStorages::Operand> operands) {
    std::vector<Failure> failed;
    pending_.Await(operands, [&](size_t operand, const absl::Status& why) {
      failed.push_back({operand, why});
      return std::make_shared<RefusedStorage>(operands[operand].storage);
    });
    return failed;
  }
  // What some thread waits for.
  std::vector<int> AwaitWanted(size_t count) {
    std::vector<int> wanted;
    while (wanted.size() < count) {
      pending_.TakeWanted(&wanted);
      absl::SleepFor(absl::Milliseconds(1));
    }
    return wanted;
  }

  std::shared_ptr<const int> gradient_ = std::make_shared<int>(1);
  PendingStorages pending_;
};

TEST_F(PendingStoragesTest, WhatIsFreeIsToldWithoutWaitingOrTakingIt) {
  const auto is_free = [this](const void* storage, bool is_written) {
    return pending_.IsFree({storage, is_written});
  };
  EXPECT_TRUE(is_free(&kOther, true));
  EXPECT_TRUE(is_free(&kGradientA, false));
  EXPECT_FALSE(is_free(&kGradientA, true));
  EXPECT_FALSE(is_free(&kA, false));
  pending_.SetStepped({3});
  EXPECT_TRUE(is_free(&kGradientA, true));
  EXPECT_TRUE(is_free(&kA, true));
  pending_.End(absl::UnknownError("EIO"));
  EXPECT_FALSE(is_free(&kB, false));
  pending_.GiveUp();
  EXPECT_TRUE(is_free(&kB, true));
  EXPECT_THAT(pending_.order(), IsEmpty());
}

TEST_F(PendingStoragesTest, WhatIsOfOthersIsFree) {
  EXPECT_THAT(Await(&kOther, true), IsEmpty());
  EXPECT_THAT(AwaitAll({}), IsEmpty());
  EXPECT_THAT(pending_.order(), IsEmpty());
}

TEST_F(PendingStoragesTest, AGradientMayBeRead) {
  EXPECT_THAT(Await(&kGradientA), IsEmpty());
}

TEST_F(PendingStoragesTest, AReaderWaitsForItsParameterAlone) {
  std::atomic<bool> is_free = false;
  std::thread reader([&] {
    EXPECT_THAT(Await(&kA), IsEmpty());
    is_free = true;
  });
  EXPECT_THAT(AwaitWanted(1), ElementsAre(3));
  pending_.SetStepped({5, 7, 99});
  EXPECT_FALSE(is_free);
  pending_.SetStepped({3});
  reader.join();
  EXPECT_THAT(Await(&kB), IsEmpty());
  EXPECT_THAT(pending_.order(), ElementsAre(3, 5));
}

TEST_F(PendingStoragesTest, OneStorageOfSeveralWaitsForAll) {
  std::thread reader([&] { EXPECT_THAT(Await(&kShared), IsEmpty()); });
  EXPECT_THAT(AwaitWanted(2), UnorderedElementsAre(7, 8));
  pending_.SetStepped({7});
  pending_.SetStepped({8});
  reader.join();
}

TEST_F(PendingStoragesTest, WhatWritesAGradientWaitsForItsLastReader) {
  std::thread writer([&] { EXPECT_THAT(Await(&kGradientA, true), IsEmpty()); });
  EXPECT_THAT(AwaitWanted(1), ElementsAre(3));
  pending_.SetStepped({3});
  writer.join();
}

TEST_F(PendingStoragesTest, GradientsEndWhereOthersLookNotWhereTheyAreStepped) {
  const std::weak_ptr<const int> held = gradient_;
  gradient_.reset();
  pending_.SetStepped({3});
  EXPECT_FALSE(held.expired());
  EXPECT_THAT(Await(&kOther), IsEmpty());
  EXPECT_TRUE(held.expired());
}

TEST_F(PendingStoragesTest, TheEndFreesAll) {
  std::thread waits([&] { pending_.AwaitEnd(); });
  std::thread reader([&] { EXPECT_THAT(Await(&kB), IsEmpty()); });
  AwaitWanted(1);
  EXPECT_FALSE(pending_.is_done());
  pending_.End(absl::OkStatus());
  waits.join();
  reader.join();
  EXPECT_TRUE(pending_.is_done());
  EXPECT_THAT(Await(&kShared, true), IsEmpty());
  EXPECT_EQ(gradient_.use_count(), 1);
}

TEST_F(PendingStoragesTest, TheEndIsWaitedForUntilADeadline) {
  EXPECT_FALSE(pending_.AwaitEndUntil(absl::InfinitePast()));
  EXPECT_EQ(pending_.waited(), absl::ZeroDuration());
  EXPECT_FALSE(pending_.AwaitEndUntil(absl::Now() + absl::Milliseconds(5)));
  EXPECT_GE(pending_.waited(), absl::Milliseconds(4));
  std::thread updates([&] { pending_.End(absl::OkStatus()); });
  EXPECT_TRUE(pending_.AwaitEndUntil(absl::InfiniteFuture()));
  updates.join();
  EXPECT_TRUE(pending_.AwaitEndUntil(absl::InfinitePast()));
}

TEST_F(PendingStoragesTest, AFailureIsToldToThoseThatNeedTheUpdate) {
  std::thread reader([&] {
    const auto failed = Await(&kB);
    ASSERT_EQ(failed.size(), 1u);
    EXPECT_EQ(failed[0].operand, 0u);
    EXPECT_THAT(failed[0].text(), HasSubstr("parameter 'b' could not"));
    EXPECT_THAT(failed[0].text(), HasSubstr("path 1: EIO"));
    EXPECT_EQ(IoFaultOf(failed[0].why).error, EIO);
  });
  AwaitWanted(1);
  pending_.SetStepped({7});
  pending_.End(WithIoFault(absl::UnknownError("path 1: EIO"), {.error = EIO}));
  reader.join();
  EXPECT_FALSE(pending_.is_done());
  EXPECT_TRUE(pending_.has_ended());
  EXPECT_THAT(Await(&kShared)[0].text(), HasSubstr("'d'"));
  EXPECT_THAT(Await(&kGradientA), IsEmpty());
  EXPECT_THAT(Await(&kGradientA, true)[0].text(), HasSubstr("'a'"));
  EXPECT_EQ(gradient_.use_count(), 2);
  EXPECT_THAT(Await(&kB), SizeIs(1));  // again
  std::vector<const void*> refused;
  for (const auto& each : pending_.TakeRefused()) {
    refused.push_back(each->storage);
  }
  EXPECT_THAT(refused, UnorderedElementsAre(&kB, &kShared, &kGradientA));
  EXPECT_THAT(pending_.TakeRefused(), IsEmpty());
}

TEST_F(PendingStoragesTest, OneThatIsClosedRefusesNothing) {
  std::thread reader([&] { EXPECT_THAT(Await(&kB), IsEmpty()); });
  AwaitWanted(1);
  EXPECT_TRUE(pending_.has_waiters());
  pending_.GiveUp();
  reader.join();
  EXPECT_FALSE(pending_.has_waiters());
  EXPECT_TRUE(pending_.is_done());
  EXPECT_THAT(Await(&kShared, true), IsEmpty());
  EXPECT_THAT(pending_.TakeRefused(), IsEmpty());
}

TEST_F(PendingStoragesTest, AnotherAttemptIsWaitedFor) {
  pending_.End(absl::UnknownError("EIO"));
  EXPECT_EQ(Await(&kA).size(), 1u);
  pending_.BeginAgain();
  std::thread reader([&] { EXPECT_THAT(Await(&kA), IsEmpty()); });
  EXPECT_THAT(AwaitWanted(1), ElementsAre(3));
  pending_.End(absl::OkStatus());
  reader.join();
  EXPECT_TRUE(pending_.is_done());
}

TEST_F(PendingStoragesTest, EveryOperandIsWaitedFor) {
  std::vector<Failure> failed;
  const PendingStorages::Operand operands[] = {
      {&kOther, true}, {&kA, false}, {&kB, true}};
  pending_.SetStepped({3});
  std::thread reader([&] { failed = AwaitAll(operands); });
  EXPECT_THAT(AwaitWanted(1), ElementsAre(5));
  pending_.End(absl::UnknownError("EIO"));
  reader.join();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].operand, 2u);
}

TEST_F(PendingStoragesTest, WhatIsSentMayBeReadAndIsUsed) {
  PendingStorages sent;
  sent.AddSent(0, "sent", &kA);
  sent.Add(1, "received", &kB, nullptr, nullptr);
  const PendingStorages::Operand read = {&kA, false};
  EXPECT_TRUE(sent.IsFree(read));
  EXPECT_FALSE(sent.IsFree({&kA, true}));
  sent.Await({&read, 1}, NotRefused);
  EXPECT_THAT(sent.order(), ElementsAre(0));
  std::thread writer([&sent] {
    const PendingStorages::Operand written = {&kA, true};
    sent.Await({&written, 1}, NotRefused);
  });
  while (!sent.has_waiters()) std::this_thread::yield();
  sent.SetStepped({0});
  writer.join();
  EXPECT_TRUE(sent.IsFree({&kA, true}));
  EXPECT_FALSE(sent.IsFree({&kB, false}));
  sent.End(absl::OkStatus());
}

TEST_F(PendingStoragesTest, WhatTheLibraryWaitsForDoesNotCount) {
  const PendingStorages::Operand read = {&kA, false};
  std::thread reader([&] {
    pending_.Await({&read, 1}, NotRefused, PendingStorages::Waiter::kOfLibrary);
  });
  AwaitWanted(1);
  pending_.SetStepped({3});
  reader.join();
  EXPECT_EQ(pending_.waited(), absl::ZeroDuration());
}

}  // namespace
}  // namespace terrace
