/*
 * The transfer of blocks: control, source and target, and what can go wrong between them (specs/transfer.md).
 *
 * `tools/spin` runs this model, which must pass, and each of its mutants, which must fail.
 *
 * A link keeps order. When it is cut, or one end crashes, each end reads some of what was under way and then hears of
 * it; the link comes back, or does not. A crash forgets everything. A process may hang while its links stay up. The
 * deadline of the sides passes at some moment, for all at once; control may be late at any moment. A copy reads two
 * chunks of the source's block at its own pace, whatever has become of the transfer. A source block that nobody pins is
 * taken by others, which makes a new generation, and may hold the chain again in one more. Bounds: two transfers, FAULTS
 * cuts, crashes, failed copies, shortages, repeats and hangs, two reuses of the source block. The target reads (a source
 * that sends has the same phases).
 */

#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef LEFTOVERS
#define LEFTOVERS 0
#endif
#ifndef REUSES
#define REUSES 2
#endif
#ifndef TRANSFERS
#define TRANSFERS 2
#endif

/* With -DONLY=LAW one law is looked at alone: so a mutant shows which it breaks. */
#ifndef ONLY
#define ONLY 0
#endif
#define RIGHT_BYTES 1         /* what is published is the chain, and all of it */
#define CONFIRMED_FIRST 2     /* what is published was confirmed */
#define HELD_THROUGHOUT 3     /* what is confirmed is in the generation that was pinned */
#define RELEASED_ONCE 4       /* a reservation is published or released, once */
#define ONE_OWNER 5           /* a copy writes only into blocks that are kept for it */
#define MOVED_AFTER 6         /* a move frees the source's block after the publication */
#define BACK_EMPTY 7          /* a side that comes back holds nothing that an earlier link has ordered */
#define ONE_TRANSFER 8        /* a side is asked to prepare when it has ended what was before */
#define law(name, holds) assert((ONLY && ONLY != name) || (holds))

mtype:message = { Hello, PrepareSource, PrepareTarget, SourcePrepared, TargetPrepared, TransferRefused, BeginCopy,
                  Copied, Confirm, Confirmed, Publish, Published, Finalize, AbortTransfer, TransferEnded };
mtype:link = { Linked, Joining, Cut, Gone };
mtype:control = { Preparing, Copying, Confirming, Publishing, Finalizing, Aborting, Ended };
mtype:source = { Source_Unknown, Source_Held, Source_Ended };
mtype:target = { Target_Unknown, Target_Reserved, Target_Copying, Target_Copied, Target_Aborting, Target_Published,
                 Target_Ended };
mtype:block = { Free, Promised, Resident };
mtype:driver = { Still, At_first_chunk, At_second_chunk };
mtype:process = { Nobody, Control_, Source_, Target_ };

chan to_source = [6] of { mtype:message, byte };
chan to_target = [6] of { mtype:message, byte };
chan from_source = [8] of { mtype:message, byte };
chan from_target = [8] of { mtype:message, byte };
mtype:link source_link = Linked, target_link = Linked;
bool source_hears, target_hears;               /* that its link is down, next */
bool control_hears_source, control_hears_target;
byte faults = FAULTS;
mtype:process hangs = Nobody;
bool is_past[3];                   /* the deadline of both sides */

/* Control: one transfer at a time, as it is one pair. */
mtype:control control = Ended;
byte id, next_id = 1;
bool source_prepared, target_prepared, is_source_open, is_target_open;

/* Source: one block. */
mtype:source source[3] = Source_Unknown;
bool has_chain = true, has_pinned_generation;
byte reuses = REUSES;

/* Target: block i is the one that transfer i reserves. */
mtype:target target[3] = Target_Unknown;
mtype:block block[3] = Free;
mtype:driver driver[3] = Still;

/* For laws alone. */
bool confirmed[3], published[3], wrong[3];
byte chunks[3];

inline tell_source(order, transfer) {
    if
    :: source_link == Linked -> assert(nfull(to_source)); to_source!order,transfer
    :: else
    fi
}

inline tell_target(order, transfer) {
    if
    :: target_link == Linked -> assert(nfull(to_target)); to_target!order,transfer
    :: else
    fi
}

inline source_says(answer, transfer) {
    if
    :: source_link == Linked || source_link == Joining -> assert(nfull(from_source)); from_source!answer,transfer
    :: else
    fi
}

inline target_says(answer, transfer) {
    if
    :: target_link == Linked || target_link == Joining -> assert(nfull(from_target)); from_target!answer,transfer
    :: else
    fi
}

inline drain(channel) {
    do
    :: nempty(channel) -> channel?heard,transfer
    :: empty(channel) -> break
    od;
    heard = Hello; transfer = 0
}

/* ---------------------------------------------------------------- control */

#define is_before_publication (control == Preparing || control == Copying || control == Confirming)

inline end_if_closed() {
    if
    :: control == Aborting && !is_source_open && !is_target_open -> control = Ended
    :: else
    fi
}

inline abort() {
    control = Aborting;
    if
#ifdef LOST_ABORT
    :: !source_prepared -> is_source_open = false
    :: is_source_open && source_prepared -> tell_source(AbortTransfer, id)
#else
    :: is_source_open -> tell_source(AbortTransfer, id)
#endif
    :: else
    fi;
    if
#ifdef LOST_ABORT
    :: !target_prepared -> is_target_open = false
    :: is_target_open && target_prepared -> tell_target(AbortTransfer, id)
#else
    :: is_target_open -> tell_target(AbortTransfer, id)
#endif
    :: else
    fi;
    end_if_closed()
}

inline order_publication() {
    control = Publishing;
    tell_target(Publish, id);
#ifdef FINALIZE_BEFORE_PUBLISH
    tell_source(Finalize, id)
#endif
}

inline finalize() {
    if
    :: is_source_open -> control = Finalizing; tell_source(Finalize, id)
    :: else -> control = Ended
    fi
}

inline begin_copy_if_prepared() {
    if
    :: source_prepared && target_prepared -> control = Copying; tell_target(BeginCopy, id)
    :: else
    fi
}

inline source_is_over() {
    is_source_open = false;
    if
    :: is_before_publication -> abort()
    :: control == Finalizing -> control = Ended
    :: else -> end_if_closed()
    fi
}

inline target_is_over() {
    is_target_open = false;
    if
    :: is_before_publication || control == Publishing -> abort()
    :: else -> end_if_closed()
    fi
}

inline hear_source() {
    if
    :: heard == Hello ->
        source_link = Linked;
        law(BACK_EMPTY, source[1] != Source_Held && source[2] != Source_Held)
    :: transfer == id && control != Ended && heard == SourcePrepared ->
        source_prepared = true;
        if
        :: control == Preparing -> begin_copy_if_prepared()
        :: else
        fi
    :: transfer == id && control == Confirming && heard == Confirmed -> order_publication()
    :: transfer == id && control != Ended && (heard == TransferRefused || heard == TransferEnded) ->
        source_is_over()
    :: (transfer != id || control == Ended) && (heard == SourcePrepared || heard == Confirmed) ->
        tell_source(AbortTransfer, transfer)
    :: else
    fi
}

inline hear_target() {
    if
    :: heard == Hello ->
        target_link = Linked;
        law(BACK_EMPTY, target[1] != Target_Reserved && target[1] != Target_Copying && target[1] != Target_Copied);
        law(BACK_EMPTY, target[2] != Target_Reserved && target[2] != Target_Copying && target[2] != Target_Copied)
    :: transfer == id && control != Ended && heard == TargetPrepared ->
        target_prepared = true;
        if
        :: control == Preparing -> begin_copy_if_prepared()
        :: else
        fi
#ifdef WITHOUT_CONFIRM
    :: transfer == id && control == Copying && heard == Copied -> order_publication()
#else
    :: transfer == id && control == Copying && heard == Copied -> control = Confirming; tell_source(Confirm, id)
#endif
    :: transfer == id && control == Publishing && heard == Published -> is_target_open = false; finalize()
    :: transfer == id && control == Aborting && heard == Published -> target_is_over()
    :: transfer == id && control != Ended && (heard == TransferRefused || heard == TransferEnded) ->
        target_is_over()
    :: (transfer != id || control == Ended) && (heard == TargetPrepared || heard == Copied) ->
        tell_target(AbortTransfer, transfer)
    :: else
    fi
}

/* The order of the phase once more. */
inline repeat() {
    if
    :: control == Preparing -> tell_source(PrepareSource, id); tell_target(PrepareTarget, id)
    :: control == Copying -> tell_target(BeginCopy, id)
    :: control == Confirming -> tell_source(Confirm, id)
    :: control == Publishing -> tell_target(Publish, id)
    :: control == Finalizing -> tell_source(Finalize, id)
    fi
}

#define is_live_at_target(transfer) (target[transfer] == Target_Reserved || target[transfer] == Target_Copying || \
                                     target[transfer] == Target_Copied)

#define leftovers (len(to_source) + len(to_target) + len(from_source) + len(from_target) + (driver[1] != Still))

/* Keeps the model small: what is left of the first transfer and matters no more is made alike, and the source has the
 * chain (again) whatever became of it. */
inline make_ready() {
#ifndef ID_WITHOUT_EPOCH
    if
    :: id == 2 && source[1] != Source_Held && !is_live_at_target(1) ->
        is_past[1] = true;
        source[1] = Source_Ended
    :: else
    fi;
    if
    :: id == 2 && (target[1] == Target_Unknown || target[1] == Target_Published) ->
        target[1] = Target_Ended;
        block[1] = Free
    :: else
    fi;
    if
    :: source[1] != Source_Held -> has_chain = true; has_pinned_generation = true; reuses = REUSES
    :: else
    fi;
#endif
    is_past[id] = false
}

active proctype Control() {
    mtype:message heard;
    byte transfer;
end:
    do
    :: atomic {
        hangs != Control_ && control == Ended && next_id <= TRANSFERS &&
        source_link == Linked && target_link == Linked && leftovers <= LEFTOVERS ->
        id = next_id;
        next_id++;
        make_ready();
        control = Preparing;
        source_prepared = false;
        target_prepared = false;
        is_source_open = true;
        is_target_open = true;
        tell_target(PrepareTarget, id);
        tell_source(PrepareSource, id)
       }
    :: atomic { hangs != Control_ && nempty(from_source) ->
        from_source?heard,transfer; hear_source(); heard = Hello; transfer = 0
       }
    :: atomic { hangs != Control_ && nempty(from_target) ->
        from_target?heard,transfer; hear_target(); heard = Hello; transfer = 0
       }
#ifndef HEALTHY
    :: atomic { hangs != Control_ && control_hears_source ->
        control_hears_source = false;
        drain(from_source);
        if
        :: control != Ended -> source_is_over()
        :: else
        fi
       }
    :: atomic { hangs != Control_ && control_hears_target ->
        control_hears_target = false;
        drain(from_target);
        if
        :: control != Ended -> target_is_over()
        :: else
        fi
       }
#ifndef NO_CONTROL_DEADLINE
    :: atomic { hangs != Control_ && (is_before_publication || control == Publishing) -> abort() }
    :: atomic { hangs != Control_ && control == Finalizing -> control = Ended }
    :: atomic { hangs != Control_ && control == Aborting && is_past[id] -> control = Ended }
#endif
    :: atomic { hangs != Control_ && faults && control != Ended && control != Aborting -> faults--; repeat() }
#endif
    od
}

/* ---------------------------------------------------------------- source */

inline end_source(transfer) {
    source[transfer] = Source_Ended;
    source_says(TransferEnded, transfer)
}

inline prepare_source() {
    if
    :: source[transfer] == Source_Held -> source_says(SourcePrepared, transfer)
    :: source[transfer] == Source_Ended -> source_says(TransferEnded, transfer)
    :: source[transfer] == Source_Unknown ->
        law(ONE_TRANSFER, source[1] != Source_Held && source[2] != Source_Held);
        if
        :: has_chain && !is_past[transfer] ->
            source[transfer] = Source_Held;
            has_pinned_generation = true;
            source_says(SourcePrepared, transfer)
#ifndef HEALTHY
        :: source[transfer] = Source_Ended; source_says(TransferRefused, transfer)
#endif
        :: !has_chain -> source[transfer] = Source_Ended; source_says(TransferRefused, transfer)
        fi
    fi
}

inline confirm() {
    if
#ifdef CONFIRM_BY_HASH
    :: has_chain ->
#else
    :: source[transfer] == Source_Held ->
#endif
        law(HELD_THROUGHOUT, has_chain && has_pinned_generation);
        confirmed[transfer] = target[transfer] == Target_Copied;
        source_says(Confirmed, transfer)
    :: else -> source_says(TransferEnded, transfer)
    fi
}

/* A copy keeps the block. So does a move, where others use it. */
inline finalize_source() {
    if
    :: source[transfer] == Source_Held ->
        law(MOVED_AFTER, published[transfer]);
        has_chain = false
    :: true
    fi;
    end_source(transfer)
}

inline let_go_of_source(transfer) {
    if
    :: source[transfer] == Source_Held -> source[transfer] = Source_Ended
    :: else
    fi
}

inline expire_source(transfer) {
    if
#ifndef NO_SOURCE_DEADLINE
    :: source[transfer] == Source_Held && is_past[transfer] -> end_source(transfer)
#endif
    :: else
    fi
}

active proctype Source() {
    mtype:message heard;
    byte transfer;
end:
    do
    :: atomic { hangs != Source_ && nempty(to_source) ->
        expire_source(1);
        expire_source(2);
        to_source?heard,transfer;
        if
        :: heard == PrepareSource -> prepare_source()
        :: heard == Confirm -> confirm()
        :: heard == Finalize -> finalize_source()
        :: heard == AbortTransfer -> end_source(transfer)
        fi;
        heard = Hello; transfer = 0
       }
#ifndef HEALTHY
#ifndef NO_SOURCE_DEADLINE
    :: atomic { hangs != Source_ && source[1] == Source_Held && is_past[1] -> end_source(1) }
    :: atomic { hangs != Source_ && source[2] == Source_Held && is_past[2] -> end_source(2) }
#endif
    :: atomic { hangs != Source_ && source_hears ->
        source_hears = false;
        drain(to_source);
#ifndef KEEPS_OLD_EPOCH
        let_go_of_source(1);
        let_go_of_source(2)
#endif
       }
    :: atomic { hangs != Source_ && source_link == Cut && !source_hears && !control_hears_source ->
        source_link = Joining;
        from_source!Hello,0
       }
    /* Short of blocks. */
    :: atomic { hangs != Source_ && faults && source[1] == Source_Held -> faults--; end_source(1) }
    :: atomic { hangs != Source_ && faults && source[2] == Source_Held -> faults--; end_source(2) }
    /* Others take the block, or do not. */
    :: atomic { reuses && source[1] != Source_Held && source[2] != Source_Held &&
        (driver[1] != Still || driver[2] != Still || control == Copying || control == Confirming) ->
        reuses--; has_chain = !has_chain; has_pinned_generation = false
       }
    :: atomic { reuses && (driver[1] != Still || driver[2] != Still || control == Copying || control == Confirming) -> reuses = 0 }
#endif
    od
}

/* ---------------------------------------------------------------- target */

inline forget_copy(transfer) {
    confirmed[transfer] = false;
    wrong[transfer] = false;
    chunks[transfer] = 0
}

inline release(transfer) {
    law(RELEASED_ONCE, block[transfer] == Promised);
    forget_copy(transfer);
    block[transfer] = Free;
    target[transfer] = Target_Ended;
    target_says(TransferEnded, transfer)
}

inline stop_target(transfer) {
    if
#ifdef FREE_BEFORE_COMPLETION
    :: target[transfer] == Target_Copying -> release(transfer)
#else
    :: target[transfer] == Target_Copying -> target[transfer] = Target_Aborting
#endif
    :: target[transfer] == Target_Reserved || target[transfer] == Target_Copied -> release(transfer)
    :: else
    fi
}

#ifdef FORGETS_ENDED
#define is_over_at_target(transfer) false
#else
#define is_over_at_target(transfer) (target[transfer] == Target_Ended)
#endif

inline prepare_target() {
    if
    :: target[transfer] == Target_Published -> target_says(Published, transfer)
    :: is_over_at_target(transfer) -> target_says(TransferEnded, transfer)
    :: target[transfer] == Target_Reserved || target[transfer] == Target_Copying || target[transfer] == Target_Copied ->
        target_says(TargetPrepared, transfer)
    :: target[transfer] == Target_Aborting
    :: target[transfer] == Target_Unknown || (target[transfer] == Target_Ended && !is_over_at_target(transfer)) ->
        law(ONE_TRANSFER, target[1] != Target_Reserved && target[1] != Target_Copying && target[1] != Target_Copied);
        law(ONE_TRANSFER, target[2] != Target_Reserved && target[2] != Target_Copying && target[2] != Target_Copied);
        if
        :: !is_past[transfer] ->
            target[transfer] = Target_Reserved;
            block[transfer] = Promised;
            target_says(TargetPrepared, transfer)
#ifndef HEALTHY
        :: target[transfer] = Target_Ended; target_says(TransferRefused, transfer)
#endif
        fi
    fi
}

inline begin_copy() {
    if
    :: target[transfer] == Target_Reserved ->
        target[transfer] = Target_Copying;
        driver[transfer] = At_first_chunk
    :: target[transfer] == Target_Copied -> target_says(Copied, transfer)
    :: target[transfer] == Target_Published -> target_says(Published, transfer)
    :: target[transfer] == Target_Unknown || target[transfer] == Target_Ended -> target_says(TransferEnded, transfer)
    :: target[transfer] == Target_Copying || target[transfer] == Target_Aborting
    fi
}

#ifdef PUBLISH_TWICE
#define is_publishable (target[transfer] == Target_Copied || target[transfer] == Target_Published)
#else
#define is_publishable (target[transfer] == Target_Copied)
#endif

inline publish() {
    if
    :: is_publishable ->
        law(CONFIRMED_FIRST, confirmed[transfer]);
        law(RIGHT_BYTES, chunks[transfer] == 2 && !wrong[transfer]);
        law(RELEASED_ONCE, block[transfer] == Promised);
        forget_copy(transfer);
        block[transfer] = Resident;
        target[transfer] = Target_Published;
        published[transfer] = true;
        target_says(Published, transfer)
    :: target[transfer] == Target_Published && !is_publishable -> target_says(Published, transfer)
    :: target[transfer] == Target_Unknown || target[transfer] == Target_Ended -> target_says(TransferEnded, transfer)
    :: target[transfer] == Target_Reserved || target[transfer] == Target_Copying || target[transfer] == Target_Aborting
    fi
}

inline abort_target() {
    if
    :: target[transfer] == Target_Published -> target_says(Published, transfer)
    :: target[transfer] == Target_Unknown || target[transfer] == Target_Ended ->
        target[transfer] = Target_Ended;
        target_says(TransferEnded, transfer)
    :: else -> stop_target(transfer)
    fi
}

inline expire_target(transfer) {
    if
#ifndef NO_TARGET_DEADLINE
    :: is_past[transfer] -> stop_target(transfer)
#endif
    :: else
    fi
}

inline copy_chunk(transfer) {
    law(ONE_OWNER, block[transfer] == Promised);
    wrong[transfer] = wrong[transfer] || !has_chain;
    chunks[transfer]++
}

/* A completion belongs to the transfer that it names. */
inline end_copy(transfer) {
    driver[transfer] = Still;
    if
#ifdef LATE_COMPLETION
    :: target[2] == Target_Copying -> target[2] = Target_Copied; target_says(Copied, 2)
#endif
    :: target[transfer] == Target_Copying -> target[transfer] = Target_Copied; target_says(Copied, transfer)
    :: target[transfer] == Target_Aborting -> release(transfer)
    :: else -> forget_copy(transfer)
    fi
}

inline fail_copy(transfer) {
    driver[transfer] = Still;
    if
    :: target[transfer] == Target_Copying || target[transfer] == Target_Aborting -> release(transfer)
    :: else -> forget_copy(transfer)
    fi
}

active proctype Target() {
    mtype:message heard;
    byte transfer;
end:
    do
    :: atomic { hangs != Target_ && nempty(to_target) ->
        expire_target(1);
        expire_target(2);
        to_target?heard,transfer;
        if
        :: heard == PrepareTarget -> prepare_target()
        :: heard == BeginCopy -> begin_copy()
        :: heard == Publish -> publish()
        :: heard == AbortTransfer -> abort_target()
        fi;
        heard = Hello; transfer = 0
       }
    :: atomic { hangs != Target_ && driver[1] == At_first_chunk -> copy_chunk(1); driver[1] = At_second_chunk }
    :: atomic { hangs != Target_ && driver[1] == At_second_chunk -> copy_chunk(1); end_copy(1) }
    :: atomic { hangs != Target_ && driver[2] == At_first_chunk -> copy_chunk(2); driver[2] = At_second_chunk }
    :: atomic { hangs != Target_ && driver[2] == At_second_chunk -> copy_chunk(2); end_copy(2) }
#ifndef HEALTHY
#ifndef NO_TARGET_DEADLINE
    :: atomic { hangs != Target_ && is_live_at_target(1) && is_past[1] -> stop_target(1) }
    :: atomic { hangs != Target_ && is_live_at_target(2) && is_past[2] -> stop_target(2) }
#endif
    :: atomic { hangs != Target_ && target_hears ->
        target_hears = false;
        drain(to_target);
#ifndef KEEPS_OLD_EPOCH
        stop_target(1);
        stop_target(2)
#endif
       }
    :: atomic { hangs != Target_ && target_link == Cut && !target_hears && !control_hears_target ->
        target_link = Joining;
        from_target!Hello,0
       }
    :: atomic { hangs != Target_ && faults && driver[1] != Still -> faults--; fail_copy(1) }
    :: atomic { hangs != Target_ && faults && driver[2] != Still -> faults--; fail_copy(2) }
    /* Short of blocks. */
    :: atomic { hangs != Target_ && faults && is_live_at_target(1) -> faults--; stop_target(1) }
    :: atomic { hangs != Target_ && faults && is_live_at_target(2) -> faults--; stop_target(2) }
#endif
    od
}

/* ---------------------------------------------------------------- the world */

inline break_link(link) {
    if
    :: link = Cut
    :: link = Gone
    fi
}

inline cut_source() {
    source_hears = true;
    control_hears_source = true;
    break_link(source_link)
}

inline cut_target() {
    target_hears = true;
    control_hears_target = true;
    break_link(target_link)
}

inline crash_source() {
    cut_source();
    source_hears = false;
    drain(to_source);
    source[1] = Source_Unknown;
    source[2] = Source_Unknown;
    has_chain = false;
    has_pinned_generation = false
}

/* A copy runs in the target's process, and dies with it. */
inline crash_target() {
    cut_target();
    target_hears = false;
    drain(to_target);
    target[1] = Target_Unknown; target[2] = Target_Unknown;
    block[1] = Free; block[2] = Free;
    driver[1] = Still; driver[2] = Still;
    forget_copy(1); forget_copy(2)
}

inline crash_control() {
    cut_source();
    cut_target();
    control_hears_source = false;
    control_hears_target = false;
    drain(from_source);
    drain(from_target);
    control = Ended;
    id = 0;
#ifdef ID_WITHOUT_EPOCH
    source_hears = false;
    target_hears = false;
    next_id = 1
#endif
}

#define is_open(transfer) ((id == transfer && control != Ended) || source[transfer] == Source_Held || \
                           is_live_at_target(transfer))

active proctype World() {
    mtype:message heard;
    byte transfer;
end:
    do
#ifdef HEALTHY
    :: false
#else
    :: atomic { !is_past[1] && is_open(1) -> is_past[1] = true }
    :: atomic { !is_past[2] && is_open(2) -> is_past[2] = true }
    :: atomic { faults && source_link != Gone && !source_hears && !control_hears_source -> faults--; cut_source() }
    :: atomic { faults && target_link != Gone && !target_hears && !control_hears_target -> faults--; cut_target() }
    :: atomic { faults && hangs != Source_ -> faults--; crash_source() }
    :: atomic { faults && hangs != Target_ -> faults--; crash_target() }
    :: atomic { faults && hangs != Control_ -> faults--; crash_control() }
    :: atomic { faults && hangs == Nobody -> faults--; hangs = Source_ }
    :: atomic { faults && hangs == Nobody -> faults--; hangs = Target_ }
    :: atomic { faults && hangs == Nobody -> faults--; hangs = Control_ }
    :: atomic { faults -> faults = 0 }
#endif
    od
}

/* ---------------------------------------------------------------- in the end */

#define control_is_done (control == Ended || hangs == Control_)
#define source_is_done ((source[1] != Source_Held && source[2] != Source_Held) || hangs == Source_)
#define target_is_done ((block[1] != Promised && block[2] != Promised) || hangs == Target_)

/* A transfer ends on every side, and nothing stays pinned or reserved, whatever the others do. */
ltl ends { <>[] (control_is_done && source_is_done && target_is_done) }

/* With -DHEALTHY nobody refuses or fails and no deadline passes. */
ltl publishes { <> (published[1] && published[2]) }
