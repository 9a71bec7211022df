/* SPDX-License-Identifier: BSD-3-Clause */
/* The protocol of docs/shm-protocol.md between two ranks, in five parts (spin -DCALLS=3 ...):
     CALLS   number of small calls, through two slots
     CHUNKS  number of chunks of an all-reduce, through two staging buffers
     SENT    number of chunks of a broadcast from rank 0, through two staging buffers
     PARTS   number of parts per share of one zero-copy all-reduce
     READS   number of all-gathers read where the data lies, through two slots; rank 0 may give up
   The data of a call or chunk is its number. */

#define RANKS 2
#define SLOTS 2
#define STAGES 2
#define MOST 4

#define OTHER (1 - me)

typedef Area {
  byte number[SLOTS];   /* Descriptor::number */
  byte small[SLOTS];    /* the data beside the descriptor */
  byte completed;
  byte stage[STAGES];
  byte result[STAGES];
  byte staged;
  byte combined;
  byte taken;
  byte claimed;
  byte done;
  byte reduced[MOST];   /* reductions of each part of this rank's share */
  byte input[SLOTS];    /* tensors on the heap; 0: the caller has changed it */
  byte read;            /* ControlBlock::read */
  bool sleeps;          /* ControlBlock::sleepers */
  byte bell;
};

Area area[RANKS];
bool failed;            /* the verdict */
/* Communicator::ring(). The code has a fence between the store before it and this load; Promela's steps are in order. */
inline ring() {
  if
  :: area[OTHER].sleeps -> area[OTHER].bell = area[OTHER].bell + 1  /* a futex word has 32 bits: it does not wrap around within a nap */
  :: else
  fi
}

/* Engine::nap() until `ready`, without a time limit, so a lost wake-up is a deadlock. */
#define await(ready)                                   \
  do                                                   \
  :: ready -> break                                    \
  :: else ->                                           \
       seen = area[me].bell;                           \
       area[me].sleeps = true;                         \
       if                                              \
       :: ready -> skip                                \
       :: else -> area[me].bell != seen                \
       fi;                                             \
       area[me].sleeps = false                         \
  od

proctype rank(byte me) {
  byte n, posted, seen, slot, owner, part, i, got;

#ifdef CALLS
  /* Small calls, published as far ahead as slots allow, completed in order. */
  do
  :: area[me].completed == CALLS -> break
  :: posted < CALLS && (posted < SLOTS || (area[OTHER].completed + SLOTS > posted && area[me].completed + SLOTS > posted)) ->
       slot = (posted + 1) % SLOTS;
       area[me].small[slot] = posted + 1;
       area[me].number[slot] = posted + 1;
       posted = posted + 1;
       ring()
  :: posted < CALLS && posted == area[me].completed && (posted < SLOTS || area[OTHER].completed + SLOTS > posted) ->
       /* Eager path: one look at the other rank's descriptor before the bell. */
       n = posted + 1;
       slot = n % SLOTS;
       area[me].small[slot] = n;
       area[me].number[slot] = n;
       posted = n;
       if
       :: area[OTHER].number[slot] == n ->
            assert(area[OTHER].small[slot] == n);
            area[me].completed = n;
            ring()  /* for the post */
       :: else -> ring()
       fi
  :: area[me].completed < posted ->
       n = area[me].completed + 1;
       slot = n % SLOTS;
       await(area[OTHER].number[slot] == n);
       assert(area[OTHER].small[slot] == n);
       area[me].completed = n;
       ring()
  od;
#endif

#ifdef CHUNKS
  /* Chunks, staged as far ahead as buffers allow, combined, taken, in the order of Pipeline::advance(). */
  do
  :: area[me].taken == CHUNKS -> break
  :: else ->
       if
       :: area[me].staged < CHUNKS && area[me].staged < area[me].taken + STAGES &&
          area[me].staged < area[OTHER].taken + STAGES ->
            i = area[me].staged;
            area[me].stage[i % STAGES] = i + 1;
            area[me].staged = i + 1;
            ring()
       :: else ->
            if
            :: area[me].combined < area[me].staged && area[OTHER].staged > area[me].combined ->
                 i = area[me].combined;
                 assert(area[OTHER].stage[i % STAGES] == i + 1);
                 area[me].result[i % STAGES] = i + 1;
                 area[me].combined = i + 1;
                 ring()
            :: else ->
                 if
                 :: area[me].taken < area[me].combined && area[OTHER].combined > area[me].taken ->
                      i = area[me].taken;
                      assert(area[OTHER].result[i % STAGES] == i + 1);
                      area[me].taken = i + 1;
                      ring()
                 :: else ->
                      await((area[me].staged < CHUNKS && area[me].staged < area[me].taken + STAGES &&
                             area[me].staged < area[OTHER].taken + STAGES) ||
                            (area[me].combined < area[me].staged && area[OTHER].staged > area[me].combined) ||
                            (area[me].taken < area[me].combined && area[OTHER].combined > area[me].taken))
                 fi
            fi
       fi
  od;
#endif

#ifdef SENT
  do
  :: me == 0 && area[0].taken < SENT ->
       await(area[0].taken < STAGES || area[1].taken + STAGES > area[0].taken);
       i = area[0].taken;
       area[0].stage[i % STAGES] = i + 1;
       area[0].staged = i + 1;
       area[0].taken = i + 1;
       ring()
  :: me == 1 && area[1].taken < SENT ->
       await(area[0].staged > area[1].taken);
       i = area[1].taken;
       assert(area[0].stage[i % STAGES] == i + 1);
       area[1].taken = i + 1;
       ring()
  :: area[me].taken == SENT -> break
  od;
#endif

#ifdef PARTS
  /* Zero-copy: own share first, then parts of the other share that are not claimed. */
  for (i : 0 .. 1) {
    owner = (me + i) % RANKS;
    do
    :: area[owner].claimed >= PARTS -> break
    :: else ->
         atomic { part = area[owner].claimed; area[owner].claimed = part + 1 };
         if
         :: part < PARTS ->
              area[owner].reduced[part] = area[owner].reduced[part] + 1;
              atomic { area[owner].done = area[owner].done + 1 };
              ring()
         :: else -> break
         fi
    od
  }
  await(area[0].done == PARTS && area[1].done == PARTS);
  assert(area[0].reduced[0] == 1 && area[0].reduced[1] == 1);
  assert(area[1].reduced[0] == 1 && area[1].reduced[1] == 1);
#endif

#ifdef READS
  /* Published as far ahead as slots allow, read and completed in order. After a call its caller changes the input. */
  do
  :: area[me].completed == READS || failed -> break
  :: posted < READS && (posted < SLOTS || (area[OTHER].completed + SLOTS > posted && area[me].completed + SLOTS > posted)) ->
       slot = (posted + 1) % SLOTS;
       area[me].input[slot] = posted + 1;
       area[me].number[slot] = posted + 1;
       posted = posted + 1;
       ring()
  :: area[me].completed < posted ->
       n = area[me].completed + 1;
       slot = n % SLOTS;
       await(area[OTHER].number[slot] == n || failed);
       if
       :: area[OTHER].number[slot] == n
       :: else -> break
       fi;
       got = area[OTHER].input[slot];
       if
       :: failed -> break
       :: else
       fi;
       assert(got == n);
       area[me].read = n;
       ring();
       if
       :: await(area[OTHER].read >= n || failed)
       :: me == 0 -> failed = true; ring()  /* a timeout */
       fi;
       if
       :: area[OTHER].read < n -> area[me].input[slot] = 0; break
       :: else
       fi;
       area[me].completed = n;
       ring();
       area[me].input[slot] = 0
  od;
#endif

  skip
}

init {
  atomic {
    run rank(0);
    run rank(1)
  }
}
