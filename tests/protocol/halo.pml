/* The signals of cuda/gpu/sums/halo.cuh between PEs, as a model that Spin checks in every order.
 *
 * PES, CALLS: how many. UPWARDS: only PEs of higher number are sent rows; else all are. FAR: rows go by puts with a
 * signal, from an outbox, and not by stores through pointers; NODES: between nodes of two PEs only. Memory is weak: what
 * a PE stores, or puts, lands at some later time and in any order, unless something orders it; what it loads may be loaded
 * earlier than where it stands.
 *
 * Each WITHOUT_... takes one element away; each must be caught.
 */
#ifndef BLOCKS
#define BLOCKS 2 /* of a PE */
#endif

#if defined(UPWARDS)
#define SENDS(p, q) ((p) < (q))
#else
#define SENDS(p, q) 1
#endif

#if defined(FAR)
#define IS_FAR(p, q) true
#elif defined(NODES)
#define IS_FAR(p, q) ((p) / 2 != (q) / 2)
#else
#define IS_FAR(p, q) false
#endif

#define PAIR(p, q) ((p) * PES + (q))
#define OWNS(p, q) ((p) < PES && (p) != (q) && SENDS(p, q))
#define OWNERS(q) (OWNS(0, q) + OWNS(1, q) + OWNS(2, q) + OWNS(3, q))
#ifdef WITHOUT_TWO_STAGINGS
#define STAGING(call) 0
#else
#define STAGING(call) ((call) & 1)
#endif

/* In q's memory: rows of p for an odd or even call (the number of the call stands for them), and signals. */
byte staging[2 * PES * PES];
byte arrived[PES * PES];
byte credit[PES * PES]; /* in p's memory: up to which call q has read */

/* Rows under way: their call, or 0, and the staging that they are for. A signal or a credit that comes later is nothing
 * that a slower reader would not make up for, so these are there at once; a put brings its signal after its rows. */
byte under_way[PES * PES];
byte place[PES * PES];
byte outbox[PES * PES];

byte gone[PES];  /* blocks of this call that have ended */
byte calls[PES]; /* that have ended */

#define AT_IS_FAR(at) IS_FAR((at) / PES, (at) % PES)

/* What is under way from one PE to another lands. */
proctype network(byte at) {
end:
  do
  :: atomic {
       under_way[at] != 0 ->
       if
       :: AT_IS_FAR(at) ->
          staging[place[at] * PES * PES + at] = outbox[at];
          assert(arrived[at] < under_way[at]); /* signals only grow */
          arrived[at] = under_way[at]
       :: else -> staging[place[at] * PES * PES + at] = under_way[at]
       fi;
       under_way[at] = 0
     }
  od
}

#ifdef WITHOUT_A_CHUNK
#define DROPPED (call == 2 && peer == PES - 1)
#else
#define DROPPED false
#endif
#define LANDED(me, peer) (under_way[PAIR(me, peer)] == 0)

inline push_all() {
  do
  :: atomic { peer < PES && (peer == me || !SENDS(me, peer) || DROPPED) -> peer++ }
  :: peer < PES && peer != me && SENDS(me, peer) && !DROPPED ->
#ifdef WITHOUT_FENCE_AFTER_CREDIT
     /* Nothing keeps the first stores from being done before the credit is seen. */
     atomic {
       under_way[PAIR(me, peer)] = call;
       place[PAIR(me, peer)] = STAGING(call)
     };
#endif
     atomic {
#ifndef WITHOUT_CREDIT_WAIT
       (call <= 2 || credit[PAIR(me, peer)] >= call - 2);
#endif
       if
       :: IS_FAR(me, peer) -> outbox[PAIR(me, peer)] = call
       :: else ->
#ifndef WITHOUT_FENCE_AFTER_CREDIT
          assert(LANDED(me, peer));
#endif
          under_way[PAIR(me, peer)] = call;
          place[PAIR(me, peer)] = STAGING(call)
       fi
     };
     if
     :: IS_FAR(me, peer) ->
        atomic {
          LANDED(me, peer); /* a queue of one put will do */
          under_way[PAIR(me, peer)] = call;
          place[PAIR(me, peer)] = STAGING(call);
          peer++
        }
     :: else ->
        atomic {
#ifndef WITHOUT_RELEASE
          LANDED(me, peer); /* the block's barrier, and the release of the signal */
#endif
          arrived[PAIR(me, peer)] = call;
          peer++
        }
     fi
  :: peer == PES -> break
  od;
  peer = 0;
#ifndef WITHOUT_QUIET
  do /* quiet_puts */
  :: atomic { peer < PES && (LANDED(me, peer) || !IS_FAR(me, peer)) -> peer++ }
  :: peer == PES -> break
  od;
  peer = 0;
#endif
}

inline give_credit() {
  for (peer : 0 .. PES - 1) {
    if
    :: peer != me && SENDS(peer, me) -> credit[PAIR(peer, me)] = call
    :: else -> skip
    fi
  };
  peer = 0
}

#ifdef WITHOUT_EPOCH
#define THERE(at) (arrived[at] >= call - 1)
#elif defined(WITHOUT_SIGNAL_WAIT)
#define THERE(at) true
#else
#define THERE(at) (arrived[at] >= call)
#endif

inline sum_all() {
  do
  :: atomic { peer < PES && (peer == me || !SENDS(peer, me)) -> peer++ }
#ifdef WITHOUT_ACQUIRE
  :: atomic { peer < PES && peer != me && SENDS(peer, me) ->
              seen = staging[STAGING(call) * PES * PES + PAIR(peer, me)] };
     atomic { THERE(PAIR(peer, me)) -> assert(seen == call); seen = 0; summed++; peer++ }
#endif
  :: atomic { peer < PES && peer != me && SENDS(peer, me) && THERE(PAIR(peer, me)) ->
              /* Neither too early, nor written again before it is read. */
              assert(staging[STAGING(call) * PES * PES + PAIR(peer, me)] == call);
              summed++;
              peer++ }
  :: peer == PES -> break
  od;
  peer = 0
}

/* A block: the first one pushes, and all sum. The last to leave gives the owners their credit and ends the call. A step
 * is whatever others can tell from its neighbours. */
proctype block(byte me, number) {
  byte call = 1, peer, seen, summed;
  do
  :: call > CALLS -> break
  :: else ->
     calls[me] == call - 1; /* kernels of a stream follow each other */
     if
     :: number == 0 -> push_all()
     :: else -> skip
     fi;
#ifdef WITHOUT_ORDER_OF_THE_CREDIT
     /* Nothing keeps the credit from being seen before the last loads are done. */
     atomic {
       if
       :: give_credit()
       :: skip
       fi
     };
#endif
     sum_all();
     atomic {
       assert(summed == OWNERS(me)); /* each chunk once */
       summed = 0;
       gone[me]++;
       if
#ifdef WITHOUT_THE_LAST_BLOCK
       :: gone[me] == 1 -> give_credit()
#endif
       :: else -> skip
       fi;
       if
       :: gone[me] == BLOCKS ->
#if !defined(WITHOUT_CREDIT) && !defined(WITHOUT_THE_LAST_BLOCK)
          give_credit();
#endif
          gone[me] = 0;
          calls[me] = call
       :: else -> skip
       fi;
       call++
     }
  od;
  assert(call == CALLS + 1)
}

init {
  byte pe, other, number;
  atomic {
    for (pe : 0 .. PES - 1) {
      for (other : 0 .. PES - 1) {
        if
        :: other != pe && SENDS(pe, other) -> run network(PAIR(pe, other))
        :: else -> skip
        fi
      };
      for (number : 0 .. BLOCKS - 1) { run block(pe, number) }
    }
  }
}
